"""The HTTP routes and the application they make."""
