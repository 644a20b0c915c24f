"""Scaling policies on a recorded load: the loop's own engine, every policy behind one interface, and the oracles."""
