"""A measured value, the floor under it, and what others reach."""
