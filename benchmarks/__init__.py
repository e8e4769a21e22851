"""The latency protocol on the local CPU, and the report that shows it."""
