package org.pocketbert.text;

import java.util.List;
import org.pocketbert.tokenizers.Encoding;

/** Turns texts into token ids, and ids into text: the tokenizer as the rest of the app sees it. */
public interface TextEncoder {
    /**
     * Tokenizes a text or a pair as it is, cut to a length where the folder says; prompts are put in front before.
     *
     * @param input one text, or two
     * @param maxLength longest result in tokens, special ones included
     */
    Encoding encode(Input input, int maxLength) throws TextException;

    /**
     * Tokenizes a question with a context, which is read in overlapping windows where it is too long.
     *
     * @param input question and context
     * @param maxLength longest window in tokens, special ones included
     * @param stride tokens that two neighbouring windows share
     * @return at least one window
     * @throws TextException if the question leaves no room for the context
     */
    List<Encoding> windows(Input input, int maxLength, int stride) throws TextException;

    /** Returns the id of the token that stands for a hidden word, or -1 where the vocabulary has none. */
    int maskId();

    /** Returns a token as the vocabulary spells it. */
    String token(int id);

    /** Returns a token as it reads. */
    String decode(int id);
}
