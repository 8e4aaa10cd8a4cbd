"""`baton capacity`: what of a model fits on a device."""
