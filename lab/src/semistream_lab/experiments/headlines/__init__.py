"""The main results of the papers, each in a row: what was published, and what was measured here."""
