"""How others write telemetry: one module per format, each read into points."""
