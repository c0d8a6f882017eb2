"""Keys: columns to 64-bit numbers, their order, their shards."""
