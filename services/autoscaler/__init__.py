"""Adds and removes prefill and decode workers, and says why."""
