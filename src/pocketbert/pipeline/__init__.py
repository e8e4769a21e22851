"""Composes the wings: stages with hashes and resume, gates, packing, model card, demo."""
