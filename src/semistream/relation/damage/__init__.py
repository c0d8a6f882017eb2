"""Damage: how it is found and repaired."""
