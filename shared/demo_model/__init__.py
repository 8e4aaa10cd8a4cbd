"""The small model that `make demo` serves, and the recipe that makes it."""
