"""`harmony evaluate` and `harmony ablate`: forecasters measured by protocols that anyone can repeat."""
