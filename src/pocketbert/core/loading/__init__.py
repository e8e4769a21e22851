"""Names and code that are found when they are first asked for: facades, open lists of names, registries, plug-ins."""
