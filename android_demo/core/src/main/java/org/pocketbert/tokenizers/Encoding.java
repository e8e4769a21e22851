package org.pocketbert.tokenizers;

/**
 * A tokenized text, or a pair of texts: L tokens with the special ones, and where each comes from. Immutable.
 *
 * <p>Places in the text are counted in Unicode code points, as golden_tokens.jsonl has them; {@link #utf16} turns them into
 * indexes of a Java string. The arrays are the encoding's own: do not write into them.
 */
public final class Encoding {
    private final int[] ids;
    private final int[] typeIds;
    private final int[] starts;
    private final int[] ends;
    private final int[] parts;
    private final int[] words;
    private final boolean truncated;

    Encoding(Row row, boolean truncated) {
        ids = row.column(Row.ID);
        typeIds = row.column(Row.TYPE);
        starts = row.column(Row.START);
        ends = row.column(Row.END);
        parts = row.column(Row.PART);
        words = row.column(Row.WORD);
        this.truncated = truncated;
    }

    /** Returns the number of tokens, special ones included. */
    public int length() {
        return ids.length;
    }

    /** Returns the token ids, [L]. */
    public int[] ids() {
        return ids;
    }

    /** Returns the segment ids, [L]: which text a token belongs to, as the model wants it. */
    public int[] typeIds() {
        return typeIds;
    }

    /** Returns the first code point of each token in its text, [L]; 0 of special tokens. */
    public int[] starts() {
        return starts;
    }

    /** Returns the place behind the last code point of each token in its text, [L]; 0 of special tokens. */
    public int[] ends() {
        return ends;
    }

    /** Returns which text each token comes from, [L]: 0 the first, 1 the second, -1 for special tokens. */
    public int[] parts() {
        return parts;
    }

    /** Returns the number of the word that each token belongs to in its text, [L]; -1 for special tokens. */
    public int[] words() {
        return words;
    }

    /** Tells whether tokens were cut off; of windows whether there are others. */
    public boolean truncated() {
        return truncated;
    }

    /** Returns how many special tokens are behind the last token of a text; all tokens where there is none. */
    public int tail() {
        int tail = 0;
        while (tail < parts.length && parts[parts.length - 1 - tail] < 0) {
            tail++;
        }
        return tail;
    }

    /**
     * Turns places in code points into indexes of a Java string.
     *
     * @param text The string that the places are of.
     * @param places Places in code points, such as {@link #starts()}; those behind the text become its length.
     * @return As many indexes of {@code char}s.
     */
    public static int[] utf16(String text, int[] places) {
        int[] indexes = new int[text.codePointCount(0, text.length()) + 1];
        int at = 0;
        for (int i = 0; i < indexes.length; i++) {
            indexes[i] = at;
            if (at < text.length()) {
                at += Character.charCount(text.codePointAt(at));
            }
        }
        int[] out = new int[places.length];
        for (int i = 0; i < places.length; i++) {
            out[i] = indexes[Math.max(0, Math.min(places[i], indexes.length - 1))];
        }
        return out;
    }
}
