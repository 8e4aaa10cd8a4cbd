"""One file per model family; shared.model_config.ARCHITECTURES says which is which."""
