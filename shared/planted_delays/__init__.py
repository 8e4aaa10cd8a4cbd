"""Delays planted on purpose, so that a test can see one stage of a request grow."""
