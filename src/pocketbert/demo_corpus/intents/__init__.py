"""The intents of the corpus, by subject."""
