"""Several joins in one pass: one shuffle at most, and one stage in Python."""
