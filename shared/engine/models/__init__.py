"""One file per model family; shared.model.config.ARCHITECTURES says which is which."""
