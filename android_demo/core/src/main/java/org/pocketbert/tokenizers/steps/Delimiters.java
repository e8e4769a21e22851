package org.pocketbert.tokenizers.steps;

import java.util.Arrays;
import java.util.function.IntPredicate;

/** Decides what becomes of the stretches between which a text is cut. */
public enum Delimiters {
    /** They are dropped. */
    REMOVED,
    /** Each is a piece. */
    ISOLATED,
    /** Each is the end of the piece before it. */
    MERGED_WITH_PREVIOUS,
    /** Each is the start of the piece behind it. */
    MERGED_WITH_NEXT,
    /** Neighbours are one piece. */
    CONTIGUOUS;

    /** Returns the matches of a condition on single characters, first and behind-last index of each. */
    static int[] matches(Piece piece, IntPredicate condition) {
        int[] out = new int[16];
        int used = 0;
        for (int i = 0; i < piece.length(); i++) {
            if (condition.test(piece.code(i))) {
                if (used == out.length) {
                    out = Arrays.copyOf(out, 2 * used);
                }
                out[used++] = i;
                out[used++] = i + 1;
            }
        }
        return Arrays.copyOf(out, used);
    }

    /**
     * Cuts a text.
     *
     * @param length Its length.
     * @param matches First and behind-last index of each match, in order.
     * @param invert Whether what is between the matches are the delimiters.
     * @return First and behind-last index of each part.
     */
    int[] cut(int length, int[] matches, boolean invert) {
        int[] stretches = new int[matches.length * 2 + 2];
        boolean[] delimiter = new boolean[matches.length + 1];
        int count = 0;
        int read = 0;
        for (int i = 0; i < matches.length; i += 2) {
            if (matches[i] != read) {
                count = add(stretches, delimiter, count, read, matches[i], invert);
            }
            count = add(stretches, delimiter, count, matches[i], matches[i + 1], !invert);
            read = matches[i + 1];
        }
        if (read != length) {
            count = add(stretches, delimiter, count, read, length, invert);
        }
        return switch (this) {
            case ISOLATED -> Arrays.copyOf(stretches, 2 * count);
            case REMOVED -> kept(stretches, delimiter, count);
            case MERGED_WITH_NEXT -> mergedBackwards(stretches, delimiter, count);
            default -> merged(stretches, delimiter, count);
        };
    }

    private static int add(int[] stretches, boolean[] delimiter, int count, int from, int to, boolean is) {
        stretches[2 * count] = from;
        stretches[2 * count + 1] = to;
        delimiter[count] = is;
        return count + 1;
    }

    private static int[] kept(int[] stretches, boolean[] delimiter, int count) {
        int[] out = new int[2 * count];
        int used = 0;
        for (int i = 0; i < count; i++) {
            if (!delimiter[i]) {
                out[used++] = stretches[2 * i];
                out[used++] = stretches[2 * i + 1];
            }
        }
        return Arrays.copyOf(out, used);
    }

    private int[] merged(int[] stretches, boolean[] delimiter, int count) {
        int[] out = new int[2 * count];
        int used = 0;
        boolean previous = false;
        for (int i = 0; i < count; i++) {
            boolean joins = this == CONTIGUOUS ? delimiter[i] == previous : delimiter[i] && !previous;
            if (joins && used > 0) {
                out[used - 1] = stretches[2 * i + 1];
            } else {
                out[used++] = stretches[2 * i];
                out[used++] = stretches[2 * i + 1];
            }
            previous = delimiter[i];
        }
        return Arrays.copyOf(out, used);
    }

    private static int[] mergedBackwards(int[] stretches, boolean[] delimiter, int count) {
        int[] out = new int[2 * count];
        int first = 2 * count;
        boolean previous = false;
        for (int i = count - 1; i >= 0; i--) {
            if (delimiter[i] && !previous && first < 2 * count) {
                out[first] = stretches[2 * i];
            } else {
                out[--first] = stretches[2 * i + 1];
                out[--first] = stretches[2 * i];
            }
            previous = delimiter[i];
        }
        return Arrays.copyOfRange(out, first, 2 * count);
    }
}
