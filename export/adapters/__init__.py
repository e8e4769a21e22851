"""Rewrites that make a family exportable; the family table names them."""
