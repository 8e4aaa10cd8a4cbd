"""`baton batch`: a file of requests becomes a file of answers."""
