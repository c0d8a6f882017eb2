"""Measurements of this machine and of the joins on it: commands, never timed tests; the product does without."""
