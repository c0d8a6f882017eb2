"""Hot keys: if a key has too many rows for one task, its rows are spread over all tasks."""
