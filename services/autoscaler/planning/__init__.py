"""How many workers to have: pure, no I/O, no clock."""
