"""A TCP proxy that connections lead through, and what may become of their bytes."""
