"""Figures from a Mac: the script that takes them there, and what reads its file here."""
