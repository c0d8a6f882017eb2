"""The experiments themselves, a file for each paper."""
