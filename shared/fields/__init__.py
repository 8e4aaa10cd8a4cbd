"""How JSON and its fields are read, and what is said of a bad one."""
