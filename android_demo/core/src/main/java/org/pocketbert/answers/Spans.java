package org.pocketbert.answers;

import java.util.List;

/**
 * Holds the named pieces of a text.
 *
 * @param spans the pieces in the order of the text
 * @param truncated whether a part of the text was not read
 */
public record Spans(List<FoundSpan> spans, boolean truncated) implements Answer {}
