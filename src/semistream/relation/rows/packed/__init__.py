"""Packed rows: columns stored in fewer bytes than their type takes."""
