"""One file per model family; shared.checkpoint.ARCHITECTURES says which is which."""
