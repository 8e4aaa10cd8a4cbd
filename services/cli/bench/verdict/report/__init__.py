"""The verdict for people: a page, and lines on a terminal."""
