package org.pocketbert.tokenizers.steps;

/** Cuts text into words; the model never joins what it cut. */
public interface PreTokenizer {
    /** Cuts the pieces of a text that are not tokens yet. */
    void split(Pieces pieces);
}
