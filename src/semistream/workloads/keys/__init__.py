"""Keys of stream tuples by position: uniform and Zipf distributions, permutations and key spaces."""
