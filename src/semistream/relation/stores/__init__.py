"""Object stores: objects by key, read in ranges, put if absent, listed, deleted; and a local tier of what was read."""
