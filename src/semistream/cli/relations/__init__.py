"""Commands that build, update, inspect and repair a relation, one file per command; and the tables they read."""
