"""Copies KV blocks next to the step loop, in a thread of the engine process."""
