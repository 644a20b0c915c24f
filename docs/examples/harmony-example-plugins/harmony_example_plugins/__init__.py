"""A forecaster, a policy, an actuator and a decoder for HARMONY."""
