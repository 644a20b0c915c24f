"""The edge: command line, settings, embedded Kafka, metrics, the simulated fleet. Nothing imports it."""
