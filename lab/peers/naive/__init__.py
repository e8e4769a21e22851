"""Static int8 as the libraries' own tools write it with their defaults: what the project's policies are compared with."""
