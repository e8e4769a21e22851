package org.pocketbert.answers;

/**
 * Holds a predicted number.
 *
 * @param value the number in the units of the training data; between 0 and 1 where the folder's score is a sigmoid
 * @param truncated whether a part of the text was not read
 */
public record Value(double value, boolean truncated) implements Answer {}
