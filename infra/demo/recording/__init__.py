"""`harmony run --recording`: recorded telemetry, read from files and played through the topics."""
