"""What two or more services use. Imports nothing from `services`."""
