"""Generators of synthetic telemetry, on which the shipped network is trained."""
