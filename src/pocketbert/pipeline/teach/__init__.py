"""Answers of teachers for the rows of a file, as a column that recipes read: `pocketbert teach`."""
