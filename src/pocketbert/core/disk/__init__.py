"""Files and folders: written whole or not at all, hashed, and removed only by who made them."""
