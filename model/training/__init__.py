"""Training of the network: synthetic examples, loss, loop and adaptation to a user's series."""
