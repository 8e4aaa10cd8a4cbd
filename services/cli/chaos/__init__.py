"""`baton chaos`: faults in a real cell under load, and what its clients saw."""
