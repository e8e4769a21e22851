package org.pocketbert.tokenizers.models;

/** Takes a word for a token if the vocabulary has it, and for an unknown one if not. */
public final class WordLevel implements Model {
    private static final byte[] NOTHING = {};

    private final Vocabulary vocabulary;
    private final int unknown;

    /**
     * Makes one.
     *
     * @throws IllegalArgumentException If the vocabulary does not have the piece of unknown words.
     */
    public WordLevel(Vocabulary vocabulary, String unknown) {
        this.vocabulary = vocabulary;
        this.unknown = vocabulary.id(unknown);
        if (this.unknown < 0) {
            throw new IllegalArgumentException("unknown words are '" + unknown + "', which the vocabulary does not have");
        }
    }

    @Override
    public Vocabulary vocabulary() {
        return vocabulary;
    }

    @Override
    public void tokenize(byte[] word, int length, Tokens out) {
        int entry = vocabulary.find(Vocabulary.hash(Vocabulary.START, word, 0, length), NOTHING, word, 0, length);
        out.add(entry < 0 ? unknown : vocabulary.idOf(entry), 0, length);
    }
}
