package org.pocketbert.artefacts;

/**
 * Describes one file as {@code artifacts.json} lists it.
 *
 * @param path path in the artefact folder with forward slashes
 * @param sha256 digest of the bytes in lower-case hexadecimal
 * @param bytes size
 * @param kind what it is for: {@code model}, {@code tokenizer}, {@code config}, {@code golden} and others
 */
public record FileEntry(String path, String sha256, long bytes, String kind) {}
