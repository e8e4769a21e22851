"""Rewrites that make a family exportable, registered under the names that `pocketbert.core.families` uses."""
