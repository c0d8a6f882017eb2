"""Relations in Spark: jobs that build and update them, and their types and key columns in Spark."""
