"""Which tokens of a batch are hidden."""
