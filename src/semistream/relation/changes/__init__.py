"""Changes of R in memory: how an update changes pages, and how holders of copies agree to it."""
