"""The commands of people who run it: status, explain, overrides, topics, state, doctor, init, plug-ins."""
