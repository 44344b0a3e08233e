"""What an operator's monitoring reads."""
