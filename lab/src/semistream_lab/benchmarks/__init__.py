"""Measurements of this machine and of the joins on it.

They are commands, not tests; the product does not need them.
"""
