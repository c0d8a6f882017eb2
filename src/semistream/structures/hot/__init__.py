"""Rows of R that the stream requests often, held in memory by key."""
