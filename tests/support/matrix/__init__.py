"""The matrix of systems, tasks, formats and schemes: what is in it, how a cell is measured, what was measured before."""
