"""A teacher's guesses over the vocabulary, sampled sparsely and kept on disk."""
