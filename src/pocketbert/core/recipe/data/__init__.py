"""The data section of a recipe: sources of rows, plain text, and augmentation."""
