"""The simulated serving fleet: engine physics, router and replica life, arrivals, device readings, telemetry, shadows.

Pure: time is an argument, draws are seeded, nothing here knows Kafka. The capacity model shares no constant with it.
"""
