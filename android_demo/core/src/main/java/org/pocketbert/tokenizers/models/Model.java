package org.pocketbert.tokenizers.models;

/** Cuts a word into tokens of a vocabulary. */
public interface Model {
    /**
     * Tokenizes one word.
     *
     * @param word Its UTF-8.
     * @param length How many bytes count, at least one.
     * @param out Gets the tokens.
     */
    void tokenize(byte[] word, int length, Tokens out);

    /** Returns the vocabulary. */
    Vocabulary vocabulary();
}
