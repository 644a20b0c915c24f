"""The conformance kit: whether an actuator, ours or anybody's, is safe to hand commands to."""
