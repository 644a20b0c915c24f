"""What may be configured: the schema of `harmony.yaml`, how it is read, and what it says when it is wrong."""
