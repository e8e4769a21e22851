package org.pocketbert.answers;

/**
 * Holds a token for a masked place.
 *
 * @param token the token as the vocabulary spells it
 * @param text the token as it reads
 * @param score its probability
 */
public record Guess(String token, String text, double score) {}
