"""The artefact folder: its files, its model card, the code in it."""
