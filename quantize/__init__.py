"""Smaller numbers in the same graph, checked operator by operator."""
