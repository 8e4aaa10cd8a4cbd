"""Rules that say how many workers a cell is to have: the product's own, and others to compare."""
