package org.pocketbert.tokenizers.steps;

import java.util.Arrays;

/**
 * New characters of a text, each with what it takes the place of: 0 one old character, -n one and the n behind it, 1 none.
 *
 * <p>A character that takes the place of none comes from the same stretch of the original text as the one before it.
 */
public final class Changes {
    private int[] codes;
    private int[] changes;
    private int size;

    /** Makes an empty list with room for some characters; it grows. */
    public Changes(int capacity) {
        codes = new int[Math.max(8, capacity)];
        changes = new int[codes.length];
    }

    /** Adds a character. */
    public void add(int code, int change) {
        if (size == codes.length) {
            codes = Arrays.copyOf(codes, 2 * size);
            changes = Arrays.copyOf(changes, 2 * size);
        }
        codes[size] = code;
        changes[size++] = change;
    }

    /** Returns the number of characters. */
    public int size() {
        return size;
    }

    /** Returns a character. */
    public int code(int index) {
        return codes[index];
    }

    /** Returns what a character takes the place of. */
    public int change(int index) {
        return changes[index];
    }

    /** Adds to what a character takes the place of. */
    public void change(int index, int more) {
        changes[index] += more;
    }

    /** Says what a character takes the place of. */
    public void setChange(int index, int change) {
        changes[index] = change;
    }

    /** Drops the characters behind the first {@code count}. */
    void truncate(int count) {
        size = count;
    }

    /** Replaces a character in its place. */
    void setCode(int index, int code) {
        codes[index] = code;
    }
}
