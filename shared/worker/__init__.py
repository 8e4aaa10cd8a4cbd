"""A worker's processes: io talks, an engine computes, joined by a channel; a server forks it."""
