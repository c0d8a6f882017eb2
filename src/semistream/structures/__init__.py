"""What joins are made of: row stores, the stream table, caches and read plans. All flat arrays, all counted."""
