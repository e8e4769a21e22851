"""Composes the wings: steps with hashes and resume, gates, packing, model card, demo."""
