"""Hot keys: rows of a key that is too large a part of the stream for one task are spread over all of them."""
