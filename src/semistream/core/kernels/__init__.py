"""Compiled kernels: where they are kept, and what is said while they are compiled."""
