"""The demo: loads a star schema from a stream, compares with Spark's own join, and queries the warehouse."""
