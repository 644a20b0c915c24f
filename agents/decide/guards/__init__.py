"""The guards between a plan and a decision, in their fixed order."""
