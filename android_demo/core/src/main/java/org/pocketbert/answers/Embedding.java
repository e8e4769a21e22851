package org.pocketbert.answers;

/**
 * Holds the vector of a text, pooled and scaled inside the file as {@code artifacts.json} says.
 *
 * @param vector the numbers
 * @param truncated whether a part of the text was not read
 */
public record Embedding(float[] vector, boolean truncated) implements Answer {}
