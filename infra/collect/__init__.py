"""Telemetry that people already have, brought in: from exporters, Prometheus, other collectors, bare machines.

Everything read becomes a `Point` (`points.py`); profiles (`profiles/*.yaml`) say which points make which field of which
record; `readings.py` puts them together; `publisher.py` writes packed telemetry records.
"""
