"""What charts are made of, whoever draws them."""
