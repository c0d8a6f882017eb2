"""Look-ups for other libraries, one file each, of at most 60 lines. None is imported unless you import its module."""
