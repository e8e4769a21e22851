"""ERNIE (Tsinghua): model, configuration, names of its checkpoints."""
