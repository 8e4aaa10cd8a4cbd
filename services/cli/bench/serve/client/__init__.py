"""The client that makes the load: connections, answers, and the account of their tokens."""
