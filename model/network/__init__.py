"""HARMONY's network: one token per indicator, cascading attention over levels, a conditional normalizing flow."""
