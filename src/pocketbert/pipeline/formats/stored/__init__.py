"""What is stored in a model file: the numbers of every constant, and what the graph does with it."""
