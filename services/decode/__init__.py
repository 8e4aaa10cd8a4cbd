"""The decode worker: pulls a prompt's KV, or computes it, and decodes."""
