"""KV on its way to and from other workers, and what a step reports of it."""
