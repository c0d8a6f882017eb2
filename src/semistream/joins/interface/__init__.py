"""What every join has: `Join` and its parts."""
