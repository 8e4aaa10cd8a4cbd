"""`baton doctor`: whether this machine, or a running cell, can serve; each fault with its cure."""
