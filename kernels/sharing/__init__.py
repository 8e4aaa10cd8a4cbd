"""GPU memory that several processes of a host see, and copies between pieces of it."""
