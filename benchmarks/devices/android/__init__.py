"""Figures that the Android demo app measured on a phone; they are imported."""
