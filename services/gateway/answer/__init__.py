"""From a generation's deltas to the bytes a client reads (step 8)."""
