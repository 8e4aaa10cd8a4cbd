"""`baton bench NAME`: a folder per benchmark."""
