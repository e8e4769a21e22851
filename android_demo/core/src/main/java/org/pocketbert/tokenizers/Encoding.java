package org.pocketbert.tokenizers;

/**
 * Holds one tokenized input, special tokens included.
 *
 * @param ids token ids, one per token
 * @param typeIds segment of each token: 0, or 1 for the second text
 * @param starts first character of each token in its text, in code points; 0 for special tokens
 * @param ends character behind the last one of each token, in code points; 0 for special tokens
 * @param words number of the word that each token belongs to, as the tokenizer splits words; -1 for special tokens
 * @param parts text that each token comes from: 0, 1, or -1 for special tokens
 * @param truncated whether tokens were cut off
 */
public record Encoding(
        int[] ids, int[] typeIds, int[] starts, int[] ends, int[] words, int[] parts, boolean truncated) {
    /** Returns the number of tokens. */
    public int length() {
        return ids.length;
    }
}
