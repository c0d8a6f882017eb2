"""Damage: how it is found, and how it is mended."""
