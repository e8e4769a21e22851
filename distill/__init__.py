"""Distillation: losses, capture of signals, students, methods, and the one training loop.

Losses and capture are usable in a loop of your own; see examples/own_training_loop.py.
"""
