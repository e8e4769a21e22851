package org.pocketbert.tokenizers.unicode;

/** Finds the ends of extended grapheme clusters, what a reader takes for one character, by the rules of Unicode's annex 29. */
public final class Graphemes {
    private static final int CR = 1;
    private static final int LF = 2;
    private static final int CONTROL = 3;
    private static final int EXTEND = 4;
    private static final int ZWJ = 5;
    private static final int REGIONAL = 6;
    private static final int PREPEND = 7;
    private static final int SPACING = 8;
    private static final int L = 9;
    private static final int V = 10;
    private static final int T = 11;
    private static final int LV = 12;
    private static final int LVT = 13;
    private static final int PICTOGRAM = 64;

    private Graphemes() {}

    /**
     * Returns the end of the cluster that starts at a place.
     *
     * @param codes Code points.
     * @param start Where a cluster starts.
     * @param end Behind the last code point; larger than {@code start}.
     */
    public static int next(int[] codes, int start, int end) {
        int before = Unicode.GRAPHEMES.get(codes[start]);
        if (start + 1 < end && (codes[start] | codes[start + 1]) < 0x80 && codes[start] != '\r') {
            return start + 1;
        }
        int regionals = kind(before) == REGIONAL ? 1 : 0;
        boolean pictogram = (before & PICTOGRAM) != 0;
        boolean joined = false; // a pictogram, what extends it, and a joiner
        boolean consonant = conjunct(before) == 2;
        boolean linked = false; // a consonant, and what extends it, a linker among them
        for (int at = start + 1; at < end; at++) {
            int after = Unicode.GRAPHEMES.get(codes[at]);
            boolean picture = joined && (after & PICTOGRAM) != 0;
            boolean conjunct = linked && conjunct(after) == 2;
            boolean flag = kind(before) == REGIONAL && kind(after) == REGIONAL && regionals % 2 == 1;
            if (!(picture || conjunct || flag || joins(kind(before), kind(after)))) {
                return at;
            }
            regionals = kind(after) == REGIONAL ? regionals + 1 : 0;
            joined = pictogram && kind(after) == ZWJ;
            pictogram = (after & PICTOGRAM) != 0 || (pictogram && kind(after) == EXTEND);
            linked = consonant && (conjunct(after) == 1 || (linked && conjunct(after) == 3));
            consonant = conjunct(after) == 2 || (consonant && conjunct(after) != 0);
            before = after;
        }
        return end;
    }

    private static boolean joins(int before, int after) {
        if (before == CR && after == LF) {
            return true;
        }
        if ((before >= CR && before <= CONTROL) || (after >= CR && after <= CONTROL)) {
            return false;
        }
        if (after == EXTEND || after == ZWJ || after == SPACING || before == PREPEND) {
            return true;
        }
        return switch (before) {
            case L -> after == L || after == V || after == LV || after == LVT;
            case LV, V -> after == V || after == T;
            case LVT, T -> after == T;
            default -> false;
        };
    }

    private static int kind(int value) {
        return value & 15;
    }

    private static int conjunct(int value) {
        return value >> 4 & 3;
    }
}
