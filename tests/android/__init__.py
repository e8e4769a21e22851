"""What `make test-android` gives to the Java tests: small artefact folders, broken files, expected numbers."""
