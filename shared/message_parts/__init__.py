"""What messages are made of, where it is more than a few words."""
