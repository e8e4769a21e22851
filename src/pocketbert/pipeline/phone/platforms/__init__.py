"""What apps of each platform carry of an artefact folder."""
