"""Relations by Spark jobs: built, updated, and their types and key columns as Spark has them."""
