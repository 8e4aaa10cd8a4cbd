"""From logits to tokens: penalties, masks, draws, log probabilities."""
