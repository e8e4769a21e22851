"""Hugging Face model folders: finding, checking, loading and saving them."""
