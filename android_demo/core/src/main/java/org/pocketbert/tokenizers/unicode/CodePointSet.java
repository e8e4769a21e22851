package org.pocketbert.tokenizers.unicode;

import java.util.Arrays;

/** Holds a set of Unicode code points; asking for one of the first 65,536 is one look into a bit field. Immutable. */
public final class CodePointSet {
    private static final int LAST = 0x10FFFF;
    private static final int PLANE = 0x10000;

    private final int[] firsts;
    private final int[] lasts;
    private final long[] plane = new long[PLANE / 64];

    private CodePointSet(int[] firsts, int[] lasts) {
        this.firsts = firsts;
        this.lasts = lasts;
        for (int i = 0; i < firsts.length && firsts[i] < PLANE; i++) {
            int last = Math.min(lasts[i], PLANE - 1);
            for (int block = firsts[i] >> 6; block <= last >> 6; block++) {
                long bits = -1L;
                if (block == firsts[i] >> 6) {
                    bits &= -1L << (firsts[i] & 63);
                }
                if (block == last >> 6) {
                    bits &= -1L >>> (63 - (last & 63));
                }
                plane[block] |= bits;
            }
        }
    }

    /**
     * Makes a set of runs of code points.
     *
     * @param runs First and last of each run, one behind the other; in any order, they may overlap.
     */
    public static CodePointSet of(int... runs) {
        int count = runs.length / 2;
        long[] sorted = new long[count];
        for (int i = 0; i < count; i++) {
            sorted[i] = ((long) runs[2 * i] << 32) | (runs[2 * i + 1] & 0xFFFFFFFFL);
        }
        Arrays.sort(sorted);
        int[] firsts = new int[count];
        int[] lasts = new int[count];
        int made = 0;
        for (long run : sorted) {
            int first = (int) (run >>> 32);
            int last = (int) run;
            if (last < first) {
                continue;
            }
            if (made > 0 && first <= lasts[made - 1] + 1) {
                lasts[made - 1] = Math.max(lasts[made - 1], last);
            } else {
                firsts[made] = first;
                lasts[made++] = last;
            }
        }
        return new CodePointSet(Arrays.copyOf(firsts, made), Arrays.copyOf(lasts, made));
    }

    /** Tells whether a code point is in the set. */
    public boolean contains(int code) {
        if (code < PLANE) {
            return code >= 0 && (plane[code >> 6] >>> (code & 63) & 1) != 0;
        }
        int at = Arrays.binarySearch(firsts, code);
        return at >= 0 || (at < -1 && code <= lasts[-at - 2]);
    }

    /** Returns the code points that are not in the set. */
    public CodePointSet complement() {
        int[] runs = new int[2 * firsts.length + 2];
        int used = 0;
        int next = 0;
        for (int i = 0; i < firsts.length; i++) {
            runs[used++] = next;
            runs[used++] = firsts[i] - 1;
            next = lasts[i] + 1;
        }
        runs[used++] = next;
        runs[used++] = LAST;
        return of(Arrays.copyOf(runs, used));
    }

    /** Returns the code points that are in one of both sets. */
    public CodePointSet union(CodePointSet other) {
        int[] runs = new int[2 * (firsts.length + other.firsts.length)];
        int used = 0;
        for (CodePointSet set : new CodePointSet[] {this, other}) {
            for (int i = 0; i < set.firsts.length; i++) {
                runs[used++] = set.firsts[i];
                runs[used++] = set.lasts[i];
            }
        }
        return of(runs);
    }

    /** Returns the code points that are in both sets. */
    public CodePointSet intersection(CodePointSet other) {
        return complement().union(other.complement()).complement();
    }
}
