"""What is merged into other modules next."""
