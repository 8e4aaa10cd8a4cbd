"""Bodies of other APIs, read as the chat request that they mean."""
