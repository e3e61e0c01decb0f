"""Measurements, always as a ratio against a peer in the same run. `make bench`."""
