"""How large an engine's steps are, found by steps of the model on the machine that serves it."""
