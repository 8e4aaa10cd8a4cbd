"""From a request's body to token ids and sampling (step 1)."""
