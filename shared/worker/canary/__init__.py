"""What a worker does before it is ready: some KV moves between a peer and it, and is verified."""
