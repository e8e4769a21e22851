"""Measuring on another machine: an agent and a worker there, their connection here."""
