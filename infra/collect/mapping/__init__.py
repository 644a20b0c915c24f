"""From points to readings: which metric makes which field of which workload's record."""
