package org.pocketbert.tokenizers.unicode;

import java.util.Arrays;

/** Maps code points to small numbers, such as their general category; 0 where nothing is said. Immutable. */
public final class CodePointNumbers {
    private final int[] firsts;
    private final int[] lasts;
    private final byte[] values;

    CodePointNumbers(int[] firsts, int[] lasts, byte[] values) {
        this.firsts = firsts;
        this.lasts = lasts;
        this.values = values;
    }

    /** Returns the number of a code point, 0 to 255. */
    public int get(int code) {
        int at = Arrays.binarySearch(firsts, code);
        int run = at >= 0 ? at : -at - 2;
        return run >= 0 && code <= lasts[run] ? values[run] & 255 : 0;
    }

    /** Returns the code points of which nothing is said. */
    public CodePointSet none() {
        int[] runs = new int[2 * firsts.length];
        for (int i = 0; i < firsts.length; i++) {
            runs[2 * i] = firsts[i];
            runs[2 * i + 1] = lasts[i];
        }
        return CodePointSet.of(runs).complement();
    }

    /** Returns the code points that have a number. */
    public CodePointSet having(int value) {
        int[] runs = new int[2 * firsts.length];
        int used = 0;
        for (int i = 0; i < firsts.length; i++) {
            if ((values[i] & 255) == value) {
                runs[used++] = firsts[i];
                runs[used++] = lasts[i];
            }
        }
        return CodePointSet.of(Arrays.copyOf(runs, used));
    }
}
