"""Basics of the package: errors, units, the memory budget, clocks and statistics."""
