"""What arrives: recorded traces, shapes fitted to them, and many copies of either."""
