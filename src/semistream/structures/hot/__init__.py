"""Rows of R that the stream asks for often, held in memory by key."""
