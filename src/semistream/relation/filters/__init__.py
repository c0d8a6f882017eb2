"""Filters: which keys R does not have, in a few bits a key."""
