package org.pocketbert.tokenizers.steps;

import java.util.Arrays;

/**
 * A stretch of text while it is normalized: its code points and, of each, the stretch of the original text that it comes from.
 *
 * <p>Every change keeps the stretches as the {@code tokenizers} library keeps them, its corner cases included: offsets of tokens
 * are equal only if all steps agree. Not thread-safe; each call of the tokenizer makes its own.
 */
public final class Piece {
    private int[] codes;
    private int[] starts;
    private int[] ends;
    private int length;
    private final int origin;

    private Piece(int[] codes, int[] starts, int[] ends, int length, int origin) {
        this.codes = codes;
        this.starts = starts;
        this.ends = ends;
        this.length = length;
        this.origin = origin;
    }

    /** Makes a piece of a whole text; halves of surrogate pairs become U+FFFD. */
    public static Piece of(String text) {
        int[] codes = text.codePoints().map(code -> code >= 0xD800 && code < 0xE000 ? 0xFFFD : code).toArray();
        int[] starts = new int[codes.length];
        int[] ends = new int[codes.length];
        for (int i = 0; i < codes.length; i++) {
            starts[i] = i;
            ends[i] = i + 1;
        }
        return new Piece(codes, starts, ends, codes.length, 0);
    }

    /** Returns the number of code points. */
    public int length() {
        return length;
    }

    /** Returns the code points; only the first {@link #length()} count, and they may not be changed. */
    public int[] codes() {
        return codes;
    }

    /** Returns one code point. */
    public int code(int index) {
        return codes[index];
    }

    /** Returns the place in the original text where a code point comes from, in code points. */
    public int start(int index) {
        return starts[index];
    }

    /** Returns the place behind the part of the original text that a code point comes from. */
    public int end(int index) {
        return ends[index];
    }

    /** Returns the place in the original text where this piece starts. */
    public int origin() {
        return origin;
    }

    /** Returns a part as a piece; {@code from} is smaller than {@code to}. */
    public Piece slice(int from, int to) {
        return new Piece(
                Arrays.copyOfRange(codes, from, to), Arrays.copyOfRange(starts, from, to), Arrays.copyOfRange(ends, from, to),
                to - from, starts[from]);
    }

    /**
     * Replaces the text by other characters and says of each which old ones it takes the place of.
     *
     * @param made The new characters, with the changes; see {@link Changes}.
     * @param skipped How many old characters are left out before the first new one.
     */
    public void transform(Changes made, int skipped) {
        int first = 0;
        while (first < length && starts[first] == ends[first]) {
            first++; // inserted before the text; the library does not replace them
        }
        if (length == 0) {
            return;
        }
        if (first == length) { // nothing of the original text is left: what is made comes behind, as the library does it
            splice(made, length, length, skipped);
        } else {
            splice(made, first, length, skipped);
        }
    }

    /** Puts characters before the text; nothing where the text is empty. */
    public void prepend(int[] text) {
        if (length == 0) {
            return;
        }
        Changes made = new Changes(text.length + 1);
        for (int i = 0; i < text.length; i++) {
            made.add(text[i], i == 0 ? 0 : 1);
        }
        made.add(codes[0], 1);
        splice(made, 0, 1, 0);
    }

    private void splice(Changes made, int from, int to, int skipped) {
        int count = made.size();
        int total = from + count + length - to;
        int[] newStarts = new int[total];
        int[] newEnds = new int[total];
        int[] newCodes = new int[total];
        System.arraycopy(codes, 0, newCodes, 0, from);
        System.arraycopy(starts, 0, newStarts, 0, from);
        System.arraycopy(ends, 0, newEnds, 0, from);
        int at = Math.min(from + skipped, to);
        for (int i = 0; i < count; i++) {
            int change = made.change(i);
            newCodes[from + i] = made.code(i);
            int source = change > 0 ? at - 1 : at;
            if (source >= length) {
                source = length - 1;
            }
            newStarts[from + i] = source < 0 ? origin : starts[source];
            newEnds[from + i] = source < 0 ? origin : ends[source];
            if (change <= 0) {
                at = Math.min(at + 1 - change, to);
            }
        }
        System.arraycopy(codes, to, newCodes, from + count, length - to);
        System.arraycopy(starts, to, newStarts, from + count, length - to);
        System.arraycopy(ends, to, newEnds, from + count, length - to);
        set(newCodes, newStarts, newEnds, total);
    }

    /**
     * Puts a text in the place of each match.
     *
     * @param matches First and behind-last index of each match, in order, not overlapping.
     * @param text What stands there afterwards; its characters come from the last character of the match.
     */
    public void replace(int[] matches, int[] text) {
        if (matches.length == 0 || length == 0) {
            return;
        }
        int total = length;
        for (int i = 0; i < matches.length; i += 2) {
            total += text.length - (matches[i + 1] - matches[i]);
        }
        int[] newCodes = new int[total];
        int[] newStarts = new int[total];
        int[] newEnds = new int[total];
        int made = 0;
        int read = 0;
        for (int i = 0; i < matches.length; i += 2) {
            int kept = matches[i] - read;
            copy(read, newCodes, newStarts, newEnds, made, kept);
            made += kept;
            int source = matches[i + 1] - 1;
            for (int code : text) {
                newCodes[made] = code;
                newStarts[made] = source < 0 ? origin : starts[source];
                newEnds[made++] = source < 0 ? origin : ends[source];
            }
            read = matches[i + 1];
        }
        copy(read, newCodes, newStarts, newEnds, made, length - read);
        set(newCodes, newStarts, newEnds, total);
    }

    private void copy(int read, int[] newCodes, int[] newStarts, int[] newEnds, int made, int count) {
        System.arraycopy(codes, read, newCodes, made, count);
        System.arraycopy(starts, read, newStarts, made, count);
        System.arraycopy(ends, read, newEnds, made, count);
    }

    private void set(int[] newCodes, int[] newStarts, int[] newEnds, int newLength) {
        codes = newCodes;
        starts = newStarts;
        ends = newEnds;
        length = newLength;
    }
}
