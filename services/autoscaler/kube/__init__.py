"""The Kubernetes side: what is read and ordered there, and the right to order."""
