"""Simulated engines and gateways for the demo, load tests and end-to-end tests."""
