"""The words that fill the slots, by subject."""
