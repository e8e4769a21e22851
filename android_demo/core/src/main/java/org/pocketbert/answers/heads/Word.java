package org.pocketbert.answers.heads;

import java.util.ArrayList;
import java.util.List;
import org.pocketbert.answers.CodePoints;
import org.pocketbert.tokenizers.Encoding;

/**
 * Holds a word of a single text, as the tokenizer splits it off.
 *
 * @param token place of its first token
 * @param start its first character, in code points
 * @param end the character behind its last, in code points
 */
record Word(int token, int start, int end) {
    /** Returns the words of a tokenized text; the blank that some tokenizers count to a word's first token is left out. */
    static List<Word> of(String text, Encoding encoding) {
        List<Word> out = new ArrayList<>();
        int last = -1;
        for (int i = 0; i < encoding.length(); i++) {
            int word = encoding.words()[i];
            if (word >= 0 && word == last) {
                Word begun = out.remove(out.size() - 1);
                out.add(new Word(begun.token(), begun.start(), encoding.ends()[i]));
            } else if (word >= 0) {
                int end = encoding.ends()[i];
                out.add(new Word(i, CodePoints.afterBlanks(text, encoding.starts()[i], end), end));
            }
            last = Math.max(word, -1);
        }
        out.removeIf(word -> word.start() == word.end()); // of several blanks
        return out;
    }
}
