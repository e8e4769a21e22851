package org.pocketbert.tokenizers.models;

import java.nio.charset.StandardCharsets;

/** Cuts a word into the longest pieces of a vocabulary from its start on, as BERT does; else the word is unknown as a whole. */
public final class WordPiece implements Model {
    private static final byte[] NOTHING = {};

    private final Vocabulary vocabulary;
    private final int unknown;
    private final byte[] prefix;
    private final int prefixHash;
    private final int mostCharacters;

    /**
     * Makes one.
     *
     * @param vocabulary The pieces.
     * @param unknown The piece of unknown words.
     * @param prefix What the pieces inside a word start with, {@code ##} of BERT.
     * @param mostCharacters Longest word that is cut, in code points; longer ones are unknown.
     * @throws IllegalArgumentException If the vocabulary does not have the unknown piece.
     */
    public WordPiece(Vocabulary vocabulary, String unknown, String prefix, int mostCharacters) {
        this.vocabulary = vocabulary;
        this.unknown = vocabulary.id(unknown);
        if (this.unknown < 0) {
            throw new IllegalArgumentException("unknown words are '" + unknown + "', which the vocabulary does not have");
        }
        this.prefix = prefix.getBytes(StandardCharsets.UTF_8);
        this.prefixHash = Vocabulary.hash(Vocabulary.START, this.prefix, 0, this.prefix.length);
        this.mostCharacters = mostCharacters;
    }

    @Override
    public Vocabulary vocabulary() {
        return vocabulary;
    }

    @Override
    public void tokenize(byte[] word, int length, Tokens out) {
        int before = out.size();
        if (characters(word, length) > mostCharacters) {
            out.add(unknown, 0, length);
            return;
        }
        int[] hashes = new int[Math.min(length, vocabulary.longest()) + 1];
        for (int start = 0; start < length; ) {
            byte[] head = start == 0 ? NOTHING : prefix;
            int most = Math.min(length - start, vocabulary.longest());
            int hash = start == 0 ? Vocabulary.START : prefixHash;
            for (int i = 0; i < most; i++) {
                hash = Vocabulary.hash(hash, word, start + i, start + i + 1);
                hashes[i + 1] = hash;
            }
            int entry = -1;
            int size = most;
            for (; size > 0; size--) {
                boolean boundary = start + size == length || (word[start + size] & 0xC0) != 0x80;
                entry = boundary ? vocabulary.find(hashes[size], head, word, start, start + size) : -1;
                if (entry >= 0) {
                    break;
                }
            }
            if (entry < 0) {
                out.truncate(before);
                out.add(unknown, 0, length);
                return;
            }
            out.add(vocabulary.idOf(entry), start, start + size);
            start += size;
        }
    }

    private static int characters(byte[] word, int length) {
        int out = 0;
        for (int i = 0; i < length; i++) {
            if ((word[i] & 0xC0) != 0x80) {
                out++;
            }
        }
        return out;
    }
}
