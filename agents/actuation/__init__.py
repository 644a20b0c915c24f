"""The check at apply time that every actuator asks before it changes replicas."""
