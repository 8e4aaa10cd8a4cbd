"""Every setting of Baton, once: in groups, so that a function takes the group it needs."""
