"""Telemetry records: what is valid, decoded fast and exactly, with limits and dead letters."""
