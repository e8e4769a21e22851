"""The fuzz campaign: inputs are mutated without end, commands run on them, and how they end is judged."""
