"""What an output must match: grammars as text, their check and their matching. Knows no torch."""
