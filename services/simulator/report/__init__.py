"""What the runs say: one HTML file, one table, one JSON object."""
