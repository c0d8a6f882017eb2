"""Relations that are held whole: one image in the memory of each machine, read by all tasks there."""
