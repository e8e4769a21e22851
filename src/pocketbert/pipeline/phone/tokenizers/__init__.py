"""Sources of tokenizers in the languages of apps, copied into the artefact folder."""
