"""Commands that make, change, look into and mend a relation, a file each; and the tables they read."""
