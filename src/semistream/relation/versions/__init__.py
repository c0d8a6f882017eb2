"""Versions of R: who writes, who reads, which stay and which go."""
