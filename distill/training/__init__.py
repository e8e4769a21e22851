"""The training loop and its parts: batches, optimizers, checkpoints, recorded losses, and the check for NaN and infinity."""
