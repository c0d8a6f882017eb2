"""Rows: Arrow columns to bytes and back, a row at a time or many."""
