"""`baton bench gateway`: a real gateway, Redis and links under workers without engines."""
