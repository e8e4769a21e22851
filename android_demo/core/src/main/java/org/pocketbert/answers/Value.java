package org.pocketbert.answers;

/**
 * Holds a predicted number.
 *
 * @param value the number in the units of the training data
 * @param truncated whether the end of the text was not read
 */
public record Value(double value, boolean truncated) implements Answer {}
