"""What TinyBERT's and MiniLM's stages are worth on SST-2, arm against arm; run by ``PYTHONPATH=lab python -m study``."""
