"""Losses as pure functions of tensors."""
