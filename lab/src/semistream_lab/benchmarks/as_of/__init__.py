"""As-of joins of a stream with a history, compared with Spark's own."""
