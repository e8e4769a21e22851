"""The machine and the process: hardware, installed libraries, progress, launched processes."""
