"""Which key each stream tuple carries: laws, permutations and moving hot sets, all by position."""
