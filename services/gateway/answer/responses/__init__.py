"""Answers in the shape of OpenAI's responses."""
