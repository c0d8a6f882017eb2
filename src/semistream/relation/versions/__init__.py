"""Versions of R: writers, readers, pins, and which versions are kept or removed."""
