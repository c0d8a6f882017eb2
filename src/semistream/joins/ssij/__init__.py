"""SSIJ, and the structures that only it uses."""
