"""Whether a file holds the numbers of the model that it was made of, compared by value."""
