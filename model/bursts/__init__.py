"""Sudden rises of demand: single jumps, surges that recur, and the paths that follow from them."""
