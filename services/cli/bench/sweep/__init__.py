"""`baton bench sweep`: decodes of growing batches, and where more brings little."""
