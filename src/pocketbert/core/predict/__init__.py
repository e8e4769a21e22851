"""From text to token ids, from there to outputs, scores and answers, for every engine alike."""
