"""What queries tell of themselves."""
