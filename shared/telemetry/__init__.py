"""Tracing, metrics and logs."""
