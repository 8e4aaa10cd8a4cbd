"""The Kubernetes side: what is read and ordered there, and who may order."""
