"""`baton bench engine`: one model on this device against its floors and against others."""
