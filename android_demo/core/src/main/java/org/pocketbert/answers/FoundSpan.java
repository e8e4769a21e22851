package org.pocketbert.answers;

/**
 * Holds a named piece of a text.
 *
 * @param start its first character, in code points
 * @param end the character behind its last, in code points
 * @param label what it is
 * @param text the piece
 * @param score mean probability of the tags of its words
 */
public record FoundSpan(int start, int end, String label, String text, double score) {}
