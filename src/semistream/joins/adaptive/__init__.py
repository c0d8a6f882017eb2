"""ADAPTIVEJOIN: its loop, its memory, how pages are fetched, and where tuples wait."""
