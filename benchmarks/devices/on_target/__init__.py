"""Programs that run on the measured machine, each a single file that is copied there and imports nothing of PocketBERT."""
