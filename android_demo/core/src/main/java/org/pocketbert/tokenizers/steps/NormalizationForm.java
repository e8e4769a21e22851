package org.pocketbert.tokenizers.steps;

import java.util.Arrays;
import org.pocketbert.tokenizers.unicode.Composition;

/** Brings text into one of Unicode's normalization forms: NFC, NFD, NFKC or NFKD. */
public final class NormalizationForm implements Normalizer {
    private final boolean compatible;
    private final boolean composed;

    /**
     * Makes one.
     *
     * @param compatible Whether characters are replaced by plainer ones that mean the same (the K in the form's name).
     * @param composed Whether letters and marks are joined again (the C).
     */
    public NormalizationForm(boolean compatible, boolean composed) {
        this.compatible = compatible;
        this.composed = composed;
    }

    @Override
    public void normalize(Piece piece) {
        if (isPlain(piece)) {
            return;
        }
        Changes made = decomposed(piece);
        piece.transform(composed ? joined(made) : made, 0);
    }

    /** Whether all characters come before the first one that any form changes. */
    private static boolean isPlain(Piece piece) {
        for (int i = 0; i < piece.length(); i++) {
            if (piece.code(i) >= 0xA0) {
                return false;
            }
        }
        return true;
    }

    private Changes decomposed(Piece piece) {
        Changes out = new Changes(piece.length() + 16);
        int[] pending = {0};
        for (int i = 0; i < piece.length(); i++) {
            boolean[] first = {true};
            Composition.decompose(piece.code(i), compatible, code -> {
                if (Composition.combiningClass(code) == 0) {
                    order(out, pending[0]);
                    pending[0] = out.size() + 1;
                }
                out.add(code, first[0] ? 0 : 1);
                first[0] = false;
            });
        }
        order(out, pending[0]);
        return out;
    }

    /** Orders the marks behind a letter by their class; marks of one class stay as they are. */
    private static void order(Changes out, int from) {
        int count = out.size() - from;
        if (count < 2) {
            return;
        }
        long[] keys = new long[count];
        for (int i = 0; i < count; i++) {
            keys[i] = (long) Composition.combiningClass(out.code(from + i)) << 32 | i;
        }
        Arrays.sort(keys);
        int[] codes = new int[count];
        int[] changes = new int[count];
        for (int i = 0; i < count; i++) {
            codes[i] = out.code(from + (int) keys[i]);
            changes[i] = out.change(from + (int) keys[i]);
        }
        for (int i = 0; i < count; i++) {
            out.setCode(from + i, codes[i]);
            out.setChange(from + i, changes[i]);
        }
    }

    /** Joins letters with the marks behind them where there is one character for both. */
    private static Changes joined(Changes in) {
        Changes out = new Changes(in.size());
        int letter = -1; // where it is in out
        int last = -1; // class of the last mark that stayed behind the letter
        for (int i = 0; i < in.size(); i++) {
            int code = in.code(i);
            int kind = Composition.combiningClass(code);
            int joined = letter >= 0 && (last < 0 || last < kind) ? Composition.compose(out.code(letter), code) : -1;
            if (joined >= 0) {
                out.setCode(letter, joined);
                out.change(letter, in.change(i) - 1);
                continue;
            }
            if (kind == 0) {
                letter = out.size();
                last = -1;
            } else if (letter >= 0) {
                last = kind;
            }
            out.add(code, in.change(i));
        }
        return out;
    }
}
