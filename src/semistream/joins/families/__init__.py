"""What joins of one kind share."""
