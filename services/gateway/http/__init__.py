"""HTTP/1.1 itself: limits, framing, refusals, connections."""
