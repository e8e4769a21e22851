package org.pocketbert.tokenizers.models;

import java.util.Arrays;

/** Tokens of a word: their ids, and the bytes of the word's UTF-8 that they stand for. */
public final class Tokens {
    private int[] content = new int[192];
    private int size;

    /** Adds a token. */
    public void add(int id, int start, int end) {
        if (size + 3 > content.length) {
            content = Arrays.copyOf(content, 2 * content.length);
        }
        content[size++] = id;
        content[size++] = start;
        content[size++] = end;
    }

    /** Removes all tokens. */
    public void clear() {
        size = 0;
    }

    /** Returns the number of tokens. */
    public int size() {
        return size / 3;
    }

    /** Returns the id of a token. */
    public int id(int index) {
        return content[3 * index];
    }

    /** Returns the first byte of a token. */
    public int start(int index) {
        return content[3 * index + 1];
    }

    /** Returns the byte behind the last one of a token. */
    public int end(int index) {
        return content[3 * index + 2];
    }

    /** Drops the tokens behind the first {@code count}. */
    void truncate(int count) {
        size = 3 * count;
    }
}
