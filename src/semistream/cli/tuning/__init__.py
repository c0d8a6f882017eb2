"""Commands that split a budget and plan capacity."""
