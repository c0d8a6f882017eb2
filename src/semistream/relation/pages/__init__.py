"""Pages: how rows lie in them, how they are found by key, written and proved."""
