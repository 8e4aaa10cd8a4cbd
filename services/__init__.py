"""The processes: gateway, prefill, decode and the command line that starts them."""
