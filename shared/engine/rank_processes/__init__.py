"""One process per rank: rank 0 starts the others and tells them what to run."""
