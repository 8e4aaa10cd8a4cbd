"""`baton bench handover`: what a hand-over adds, next to the same engine without one."""
