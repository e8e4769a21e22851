package org.pocketbert.answers;

import java.util.List;

/**
 * Holds one label of several.
 *
 * @param label the most probable label
 * @param score its probability
 * @param labels all labels in order of their ids
 * @param scores probability of every label, in the same order
 * @param truncated whether a part of the text was not read
 * @param unknown whether the probability lies below the folder's threshold, so that the label should not be believed
 */
public record Prediction(
        String label, double score, List<String> labels, double[] scores, boolean truncated, boolean unknown)
        implements Answer {}
