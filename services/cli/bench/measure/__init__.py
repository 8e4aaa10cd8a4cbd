"""What all benchmarks measure with."""
