"""Frames between a gateway and a worker over one persistent TCP connection."""
