"""Owns an accepted request until it ends: routing, attempts, workers, record (steps 2-4, 9)."""
