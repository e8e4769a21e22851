package org.pocketbert.tokenizers.unicode;

import java.util.Arrays;

/** Maps code points to sequences of code points, such as their decomposition. Immutable. */
public final class CodePointTexts {
    private final int[] codes;
    private final int[] ends;
    private final int[] texts;

    CodePointTexts(int[] codes, int[] ends, int[] texts) {
        this.codes = codes;
        this.ends = ends;
        this.texts = texts;
    }

    /** Returns the number of code points that have a text. */
    public int size() {
        return codes.length;
    }

    /** Returns the code point of an entry, in ascending order. */
    public int code(int entry) {
        return codes[entry];
    }

    /** Returns the text of an entry, as code points. */
    public int[] text(int entry) {
        return Arrays.copyOfRange(texts, entry == 0 ? 0 : ends[entry - 1], ends[entry]);
    }

    /** Returns the entry of a code point, or a negative number where it has none. */
    public int find(int code) {
        return Arrays.binarySearch(codes, code);
    }

    /** Returns the number of code points in the text of an entry. */
    public int length(int entry) {
        return ends[entry] - (entry == 0 ? 0 : ends[entry - 1]);
    }

    /** Returns one code point of the text of an entry. */
    public int at(int entry, int index) {
        return texts[(entry == 0 ? 0 : ends[entry - 1]) + index];
    }
}
