"""Programs that run on a target. They import neither PocketBERT nor each other, and run on Python 3.8 and newer."""
