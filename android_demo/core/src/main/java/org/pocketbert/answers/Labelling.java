package org.pocketbert.answers;

import java.util.List;

/**
 * Holds any number of labels.
 *
 * @param given labels whose probability reaches their threshold, the most probable first
 * @param labels all labels in order of their ids
 * @param scores probability of every label, in the same order
 * @param truncated whether a part of the text was not read
 */
public record Labelling(List<String> given, List<String> labels, double[] scores, boolean truncated)
        implements Answer {}
