"""Acts on commands: one core that judges them at apply time, and an adapter for each place where replicas change."""
