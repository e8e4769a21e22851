package org.pocketbert.answers;

import java.util.List;

/**
 * Holds tokens for the masked places of a text.
 *
 * @param places for each masked place the most probable tokens, best first; empty for a text without masks
 * @param truncated whether a part of the text was not read
 */
public record Filled(List<List<Guess>> places, boolean truncated) implements Answer {}
