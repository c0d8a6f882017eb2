"""A join of a DataFrame: the plan, the task, warm caches, and parked rows."""
