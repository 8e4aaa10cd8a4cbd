"""One request's stages as a picture."""
