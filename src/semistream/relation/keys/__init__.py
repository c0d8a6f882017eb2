"""Keys: columns as 64-bit numbers, their order, and their shards."""
