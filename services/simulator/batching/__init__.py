"""Batching policies compared on one device: what shares its steps, and when it begins."""
