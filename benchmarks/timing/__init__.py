"""Timing files in turns: one of them, all of them at one thread count, and repeats in fresh processes."""
