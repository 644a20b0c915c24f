"""What the processes say of themselves: metrics, logs, health and probes, dashboards."""
