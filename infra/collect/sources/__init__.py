"""Where telemetry is read from: exporters, Prometheus servers, NVIDIA devices, this machine."""
