"""Relations that are held whole: one image in the memory of each machine, which all tasks there read."""
