"""How each family of models writes tool calls into its text, one file per family."""
