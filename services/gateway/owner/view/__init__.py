"""What an operator sees of the gateway now: rings of the last minutes, and one body of all."""
