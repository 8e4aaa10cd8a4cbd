"""`baton bench verdict`: whether prefill and decode apart serve a load better than together."""
