"""The machine and the process: hardware, installed libraries, terminal, progress, launched processes."""
