"""The methods of distillation, one module each."""
