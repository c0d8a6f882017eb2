"""The demo: a star schema loaded from a stream, Spark's own join beside it, and questions to the warehouse."""
