"""Faults planted on purpose, so that a test can see what follows from one."""
