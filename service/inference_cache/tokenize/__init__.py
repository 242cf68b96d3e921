"""From prompt text to the token ids that an engine would see."""
