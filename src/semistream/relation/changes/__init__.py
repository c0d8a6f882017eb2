"""Changes of R in memory: what an update makes of its pages, and how all who hold copies agree to it."""
