"""The ground floor: errors, units, the memory budget, clocks and statistics."""
