package org.pocketbert.tokenizers;

/** Makes encodings of given tokens, for tests of what comes behind a tokenizer. */
public final class Encodings {
    private Encodings() {}

    /** Makes an encoding of columns of the same length. */
    public static Encoding of(
            int[] ids, int[] typeIds, int[] starts, int[] ends, int[] words, int[] parts, boolean truncated) {
        Row row = new Row(ids.length);
        for (int i = 0; i < ids.length; i++) {
            row.add(ids[i], typeIds[i], starts[i], ends[i], parts[i], words[i], 0, 0);
        }
        return new Encoding(row, truncated);
    }

    /** Makes an encoding of ids whose other columns nobody reads. */
    public static Encoding of(int[] ids, int[] typeIds) {
        return of(ids, typeIds, ids, ids, ids, ids, false);
    }
}
