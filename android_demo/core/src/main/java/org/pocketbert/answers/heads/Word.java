package org.pocketbert.answers.heads;

import java.util.ArrayList;
import java.util.List;
import org.pocketbert.answers.CodePoints;
import org.pocketbert.tokenizers.Encoding;
import org.pocketbert.tokenizers.unicode.Unicode;

/**
 * Holds a word of a single text, as the tokenizer splits it off.
 *
 * @param token place of its first token
 * @param start its first character, in code points
 * @param end the character behind its last, in code points
 */
record Word(int token, int start, int end) {
    /**
     * Returns the words of a tokenized text; the blank that some tokenizers count to a word's first token is left out.
     *
     * @param splitsPunctuation whether a word also begins at a token that begins with punctuation or follows it
     */
    static List<Word> of(String text, Encoding encoding, boolean splitsPunctuation) {
        List<Word> out = new ArrayList<>();
        int[] points = text.codePoints().toArray();
        int last = -1;
        int lastEnd = 0;
        for (int i = 0; i < encoding.length(); i++) {
            int word = encoding.words()[i];
            int end = encoding.ends()[i];
            int start = CodePoints.afterBlanks(text, encoding.starts()[i], end);
            boolean begins = splitsPunctuation && lastEnd <= start && start < end && isAtPunctuation(points, start);
            if (word >= 0 && word == last && !begins) {
                Word begun = out.remove(out.size() - 1);
                out.add(new Word(begun.token(), begun.start(), end));
            } else if (word >= 0) {
                out.add(new Word(i, start, end));
            }
            last = Math.max(word, -1);
            lastEnd = end;
        }
        out.removeIf(word -> word.start() == word.end()); // of several blanks
        return out;
    }

    private static boolean isAtPunctuation(int[] points, int place) {
        return Unicode.PUNCTUATION.contains(points[place]) || (place > 0 && Unicode.PUNCTUATION.contains(points[place - 1]));
    }
}
