"""The one training loop and what it needs: batches, optimisers, precision, checkpoints."""
