"""Pages: how rows are laid out in them, how they are found by key, and how they are written."""
