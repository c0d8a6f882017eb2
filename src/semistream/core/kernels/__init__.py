"""Compiled kernels: their cache on disk, and callbacks during compilation."""
