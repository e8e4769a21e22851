"""Prediction: rows with their labels, texts to token ids, token ids to outputs, outputs to scores and answers, for every engine alike."""
