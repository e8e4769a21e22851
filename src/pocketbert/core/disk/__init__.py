"""Files and folders: atomic writes, hashes, temporary folders, and removal of what this process created only."""
