package org.pocketbert.answers;

/**
 * Holds a piece of a context that answers a question.
 *
 * @param text the answer as it is in the context; empty where the model says that there is none
 * @param start its first character in the context, in code points
 * @param end the character behind its last, in code points
 * @param score probability of this start times that of this end, within the window that it was found in
 */
public record Excerpt(String text, int start, int end, double score) implements Answer {
    /** Returns false: a long context is read in windows. */
    @Override
    public boolean truncated() {
        return false;
    }
}
