"""`baton bench serve`: load on an OpenAI endpoint, what its clients feel, what was possible."""
