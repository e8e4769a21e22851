package org.pocketbert.tokenizers.steps;

import java.util.List;
import java.util.function.IntPredicate;
import org.pocketbert.tokenizers.regex.Regex;
import org.pocketbert.tokenizers.unicode.Unicode;

/** Makes the pre-tokenizers that tokenizer.json can name. */
public final class Splitters {
    private static final Regex WORDS = Regex.of("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+");
    private static final int[] BLANK = {' '};

    private Splitters() {}

    /** Returns one that runs several, one behind the other. */
    public static PreTokenizer sequence(List<PreTokenizer> steps) {
        List<PreTokenizer> all = List.copyOf(steps);
        return pieces -> all.forEach(step -> step.split(pieces));
    }

    /** Returns BERT's: words between white space, each punctuation mark a word of its own. */
    public static PreTokenizer bert() {
        return sequence(List.of(whitespace(), punctuation(Delimiters.ISOLATED)));
    }

    /** Returns one that cuts at white space and drops it. */
    public static PreTokenizer whitespace() {
        return characters(Unicode.SPACE::contains, Delimiters.REMOVED);
    }

    /** Returns one that keeps runs of letters and digits, and runs of other characters, without white space. */
    public static PreTokenizer words() {
        return pieces -> pieces.cut(piece -> {
            int[] out = new int[2 * piece.length()];
            int used = 0;
            int last = 0;
            for (int i = 0; i < piece.length(); i++) {
                int code = piece.code(i);
                int kind = Unicode.WORD.contains(code) ? 1 : Unicode.SPACE.contains(code) ? 0 : 2;
                if (kind != 0 && kind == last) {
                    out[used - 1] = i + 1;
                } else if (kind != 0) {
                    out[used++] = i;
                    out[used++] = i + 1;
                }
                last = kind;
            }
            return java.util.Arrays.copyOf(out, used);
        });
    }

    /** Returns one that cuts at punctuation marks. */
    public static PreTokenizer punctuation(Delimiters behavior) {
        return characters(Unicode.PUNCTUATION::contains, behavior);
    }

    /** Returns one that cuts digits from other characters, and from each other where {@code single}. */
    public static PreTokenizer digits(boolean single) {
        return characters(Unicode.NUMERIC::contains, single ? Delimiters.ISOLATED : Delimiters.CONTIGUOUS);
    }

    /** Returns one that cuts at one character and drops it. */
    public static PreTokenizer delimiter(int code) {
        return characters(other -> other == code, Delimiters.REMOVED);
    }

    /** Returns one that cuts at the matches of a regular expression, or between them where {@code invert}. */
    public static PreTokenizer regex(Regex pattern, Delimiters behavior, boolean invert) {
        return pieces -> pieces.cut(
                piece -> behavior.cut(piece.length(), pattern.matches(piece.codes(), piece.length()), invert));
    }

    /** Returns the one of byte-level BPE: words with the blank before them, spelt in letters for bytes. */
    public static PreTokenizer byteLevel(boolean prefixSpace, boolean useRegex) {
        return pieces -> {
            pieces.cut(piece -> {
                if (prefixSpace && (piece.length() == 0 || piece.code(0) != ' ')) {
                    piece.prepend(BLANK);
                }
                return useRegex
                        ? Delimiters.ISOLATED.cut(piece.length(), WORDS.matches(piece.codes(), piece.length()), false)
                        : new int[] {0, piece.length()};
            });
            for (Pieces.Part part : pieces.parts()) {
                if (part.token() == null) {
                    ByteLetters.spell(part.text());
                }
            }
        };
    }

    /** Says before which texts SentencePiece's sign for a blank is put. */
    public enum Prepend {
        /** Before each that does not start with it. */
        ALWAYS,
        /** Before the start of the whole text only. */
        FIRST,
        /** Before none. */
        NEVER
    }

    /** Returns SentencePiece's: blanks become a sign, and a word starts with it. */
    public static PreTokenizer metaspace(int sign, Prepend scheme, boolean split) {
        int[] text = {sign};
        return pieces -> pieces.cut(piece -> {
            piece.replace(Delimiters.matches(piece, code -> code == ' '), text);
            boolean there = piece.length() > 0 && piece.code(0) == sign;
            if (!there && (scheme == Prepend.ALWAYS || (scheme == Prepend.FIRST && piece.origin() == 0))) {
                piece.prepend(text);
            }
            return split
                    ? Delimiters.MERGED_WITH_NEXT.cut(piece.length(), Delimiters.matches(piece, code -> code == sign), false)
                    : new int[] {0, piece.length()};
        });
    }

    private static PreTokenizer characters(IntPredicate condition, Delimiters behavior) {
        return pieces -> pieces.cut(piece -> behavior.cut(piece.length(), Delimiters.matches(piece, condition), false));
    }
}
