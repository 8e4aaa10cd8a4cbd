"""Sequences: which of them run next, and which KV blocks they hold."""
