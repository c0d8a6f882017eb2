"""What all joins share: `Join` and its parts."""
