package org.pocketbert.tokenizers.unicode;

import java.util.HashMap;
import java.util.Map;

/** Takes characters apart and joins them again as Unicode's normalization forms say, with the tables of {@link Unicode}. */
public final class Composition {
    private static final int SYLLABLES = 0xAC00;
    private static final int LEADING = 0x1100;
    private static final int VOWELS = 0x1161;
    private static final int TRAILING = 0x11A7;
    private static final int VOWEL_COUNT = 21;
    private static final int TRAILING_COUNT = 28;
    private static final int LEADING_COUNT = 19;
    private static final int SYLLABLE_COUNT = LEADING_COUNT * VOWEL_COUNT * TRAILING_COUNT;
    private static final Map<Long, Integer> PAIRS = pairs();

    private Composition() {}

    /** Receives the characters that one character is taken apart into. */
    public interface Sink {
        /** Takes one character. */
        void accept(int code);
    }

    /**
     * Takes one character apart, as far as it goes.
     *
     * @param code The character.
     * @param compatible Whether also those are taken apart that only look alike or mean the same (NFKD).
     * @param sink Gets the characters, at least one.
     */
    public static void decompose(int code, boolean compatible, Sink sink) {
        int syllable = code - SYLLABLES;
        if (syllable >= 0 && syllable < SYLLABLE_COUNT) {
            sink.accept(LEADING + syllable / (VOWEL_COUNT * TRAILING_COUNT));
            sink.accept(VOWELS + syllable % (VOWEL_COUNT * TRAILING_COUNT) / TRAILING_COUNT);
            if (syllable % TRAILING_COUNT != 0) {
                sink.accept(TRAILING + syllable % TRAILING_COUNT);
            }
            return;
        }
        CodePointTexts table = Unicode.NFKD;
        int entry = compatible && code >= 0xA0 ? table.find(code) : -1;
        if (entry < 0) {
            table = Unicode.NFD;
            entry = code >= 0xA0 ? table.find(code) : -1;
        }
        if (entry < 0) {
            sink.accept(code);
            return;
        }
        for (int i = 0; i < table.length(entry); i++) {
            sink.accept(table.at(entry, i));
        }
    }

    /** Returns what two characters are joined to; -1 where they stay two. */
    public static int compose(int first, int second) {
        int leading = first - LEADING;
        int vowel = second - VOWELS;
        if (leading >= 0 && leading < LEADING_COUNT && vowel >= 0 && vowel < VOWEL_COUNT) {
            return SYLLABLES + (leading * VOWEL_COUNT + vowel) * TRAILING_COUNT;
        }
        int syllable = first - SYLLABLES;
        int trailing = second - TRAILING;
        if (syllable >= 0 && syllable < SYLLABLE_COUNT && syllable % TRAILING_COUNT == 0 && trailing > 0 && trailing < TRAILING_COUNT) {
            return first + trailing;
        }
        Integer made = second < 0x300 ? null : PAIRS.get((long) first << 32 | second);
        return made == null ? -1 : made;
    }

    /** Returns the combining class, by which marks on one letter are ordered; 0 of letters. */
    public static int combiningClass(int code) {
        return code < 0x300 ? 0 : Unicode.COMBINING_CLASS.get(code);
    }

    private static Map<Long, Integer> pairs() {
        Map<Long, Integer> out = new HashMap<>();
        CodePointTexts table = Unicode.COMPOSED;
        for (int i = 0; i < table.size(); i++) {
            out.put((long) table.at(i, 0) << 32 | table.at(i, 1), table.code(i));
        }
        return out;
    }
}
