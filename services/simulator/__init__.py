"""A cell under hours of load in seconds: which scaling policy keeps the promise, at what cost."""
