"""Object stores (range reads, conditional puts, lists, deletions), and a local tier that caches what was read."""
