"""The experiments, in files named after their papers."""
