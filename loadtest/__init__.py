"""Measuring a server: see `make bench`."""
