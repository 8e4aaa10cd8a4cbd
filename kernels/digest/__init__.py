"""Digests of KV blocks."""
