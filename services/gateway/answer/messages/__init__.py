"""Answers in the shape of Anthropic's messages."""
