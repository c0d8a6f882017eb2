"""Building blocks of joins: row stores, the stream table, caches and read plans.

All are flat arrays of known size.
"""
