"""Moves KV blocks between workers; knows nothing of engines, Redis or HTTP."""
