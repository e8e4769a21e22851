package org.pocketbert.tokenizers.steps;

import java.util.function.IntPredicate;
import java.util.function.IntUnaryOperator;
import org.pocketbert.tokenizers.unicode.CodePointSet;
import org.pocketbert.tokenizers.unicode.CodePointTexts;
import org.pocketbert.tokenizers.unicode.Unicode;

/** Makes the normalizers that look at one character at a time. */
public final class CharacterNormalizers {
    private static final CodePointSet NMT_REMOVED =
            CodePointSet.of(1, 8, 0xB, 0xB, 0xE, 0x1F, 0x7F, 0x7F, 0x8F, 0x8F, 0x9F, 0x9F);
    private static final CodePointSet NMT_BLANK = CodePointSet.of(
            9, 0xA, 0xC, 0xD, 0x1680, 0x1680, 0x200B, 0x200F, 0x2028, 0x2029, 0x2581, 0x2581, 0xFEFF, 0xFEFF, 0xFFFD, 0xFFFD);

    private CharacterNormalizers() {}

    /** Returns one that keeps some characters and replaces these one by one. */
    public static Normalizer mapping(IntPredicate keep, IntUnaryOperator map) {
        return piece -> filter(piece, keep, map);
    }

    /** Returns one that removes control characters and makes blanks of others, as SentencePiece's rule "nmt". */
    public static Normalizer nmt() {
        return mapping(code -> !NMT_REMOVED.contains(code), code -> NMT_BLANK.contains(code) ? ' ' : code);
    }

    /** Returns one that removes combining marks. */
    public static Normalizer stripAccents() {
        return mapping(code -> !Unicode.COMBINING.contains(code), code -> code);
    }

    /** Returns one that writes all letters in lower case, each by itself: a sigma at the end of a word is like any other. */
    public static Normalizer lowercase() {
        return CharacterNormalizers::lower;
    }

    /** Returns one that spells bytes as letters, as byte-level BPE does. */
    public static Normalizer byteLevel() {
        return ByteLetters::spell;
    }

    /** Returns one that removes white space from the ends. */
    public static Normalizer strip(boolean left, boolean right) {
        return piece -> {
            int length = piece.length();
            int first = 0;
            while (left && first < length && Unicode.SPACE.contains(piece.code(first))) {
                first++;
            }
            int end = length;
            // a text of white space alone loses all of it
            while (right && end > 0 && Unicode.SPACE.contains(piece.code(end - 1))) {
                end--;
            }
            if (first == 0 && end == length) {
                return;
            }
            Changes made = new Changes(Math.max(0, end - first));
            for (int i = first; i < end; i++) {
                made.add(piece.code(i), 0);
            }
            piece.transform(made, first);
        };
    }

    private static void filter(Piece piece, IntPredicate keep, IntUnaryOperator map) {
        int length = piece.length();
        int index = 0;
        while (index < length && keep.test(piece.code(index)) && map.applyAsInt(piece.code(index)) == piece.code(index)) {
            index++;
        }
        if (index == length) {
            return; // nothing to change, as in most texts
        }
        Changes made = new Changes(length);
        int removedFirst = 0;
        for (int i = 0; i < length; i++) {
            int code = piece.code(i);
            if (keep.test(code)) {
                made.add(map.applyAsInt(code), 0);
            } else if (made.size() == 0) {
                removedFirst++;
            } else {
                made.change(made.size() - 1, -1);
            }
        }
        piece.transform(made, removedFirst);
    }

    private static void lower(Piece piece) {
        CodePointTexts table = Unicode.lowercase();
        Changes made = null;
        for (int i = 0; i < piece.length(); i++) {
            int code = piece.code(i);
            int entry = code < 0x80 ? -1 : table.find(code);
            boolean capital = code >= 'A' && code <= 'Z';
            if (made == null && (capital || entry >= 0)) {
                made = new Changes(piece.length() + 8);
                for (int k = 0; k < i; k++) {
                    made.add(piece.code(k), 0);
                }
            }
            if (capital) {
                made.add(code + 32, 0);
            } else if (entry >= 0) {
                for (int k = 0; k < table.length(entry); k++) {
                    made.add(table.at(entry, k), k == 0 ? 0 : 1);
                }
            } else if (made != null) {
                made.add(code, 0);
            }
        }
        if (made != null) {
            piece.transform(made, 0);
        }
    }
}
