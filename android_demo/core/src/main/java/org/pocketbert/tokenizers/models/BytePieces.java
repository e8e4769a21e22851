package org.pocketbert.tokenizers.models;

/** Finds the pieces of a vocabulary that stand for single bytes, such as {@code <0x41>}. */
final class BytePieces {
    private BytePieces() {}

    /** Returns the id of each of the 256 bytes; -1 of those that the vocabulary lacks. */
    static int[] ids(Vocabulary vocabulary) {
        int[] out = new int[256];
        for (int i = 0; i < 256; i++) {
            out[i] = vocabulary.id(String.format(java.util.Locale.ROOT, "<0x%02X>", i));
        }
        return out;
    }

    /** Tells whether the vocabulary has a piece for each of some bytes. */
    static boolean all(int[] ids, byte[] bytes, int from, int to) {
        for (int i = from; i < to; i++) {
            if (ids[bytes[i] & 255] < 0) {
                return false;
            }
        }
        return true;
    }
}
