"""Rows: Arrow columns encoded as bytes and decoded again."""
