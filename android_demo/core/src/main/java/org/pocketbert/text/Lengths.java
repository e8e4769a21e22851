package org.pocketbert.text;

import java.util.List;

/** Chooses the length of an input among those that a file takes. */
public final class Lengths {
    private Lengths() {}

    /**
     * Returns the smallest length that holds some tokens.
     *
     * @param lengths the only lengths that a file takes, ascending; empty where it takes every length
     * @param tokens number of tokens
     * @return one of the lengths, or {@code tokens} where every length is taken
     * @throws TextException if there are more tokens than the longest length
     */
    public static int fitting(List<Integer> lengths, int tokens) throws TextException {
        if (lengths.isEmpty()) {
            return tokens;
        }
        for (int length : lengths) {
            if (length >= tokens) {
                return length;
            }
        }
        throw new TextException(
                TextException.Reason.LENGTH,
                "The text has " + tokens + " tokens; the file takes " + join(lengths) + ". Cut it to the longest.");
    }

    /**
     * Returns the longest input that a model reads with a file.
     *
     * @param lengths the only lengths that the file takes, ascending; empty where it takes every length
     * @param maxLength longest input of the model in tokens
     */
    public static int longest(List<Integer> lengths, int maxLength) {
        return lengths.isEmpty() ? maxLength : Math.min(maxLength, lengths.get(lengths.size() - 1));
    }

    private static String join(List<Integer> lengths) {
        StringBuilder out = new StringBuilder();
        for (int length : lengths) {
            out.append(out.length() == 0 ? "" : ", ").append(length);
        }
        return out.toString();
    }
}
