package org.pocketbert.tokenizers.steps;

/** Changes a text before it is cut into words. */
public interface Normalizer {
    /** Changes a piece of text in its place. */
    void normalize(Piece piece);
}
