"""What a run came to: figures, an ideal to compare with, text and pictures."""
