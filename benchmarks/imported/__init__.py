"""Figures measured elsewhere (Macs, iPhones, Android phones, saved program outputs), read into benchmark results."""
