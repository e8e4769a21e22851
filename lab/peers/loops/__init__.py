"""The loops that a distillation step is compared in."""
