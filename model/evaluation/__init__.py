"""Measuring forecasters: scores, the two protocols, the baselines they are held against. Tensors and arrays only."""
