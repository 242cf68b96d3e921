"""Simulated engines and gateways as processes of their own, in the wall's time, for as long as they are let."""
