"""Pruning the vocabulary of a student: which pieces stay, the tokenizer and the table without the others, and re-split rows."""
