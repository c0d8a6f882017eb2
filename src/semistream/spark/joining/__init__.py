"""A join of a DataFrame: the plan, the task, warm caches, and rows that wait for their partner."""
