package org.pocketbert.tokenizers;

import java.io.ByteArrayOutputStream;

/** Reads Base64: Android has java.util.Base64 only since API level 26. */
final class Base64Bytes {
    private static final String LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    private static final int LETTER_BITS = 6;
    private static final int BYTE_BITS = 8;
    private static final int GROUP = 4;

    private Base64Bytes() {}

    /**
     * Returns the bytes of a text in Base64, padded with {@code =} to a multiple of four letters.
     *
     * @throws IllegalArgumentException if the text is no such text
     */
    static byte[] of(String text) {
        if (text.length() % GROUP != 0) {
            throw new IllegalArgumentException("is no Base64: it has " + text.length() + " letters, not a multiple of 4");
        }
        int end = text.endsWith("==") ? text.length() - 2 : text.endsWith("=") ? text.length() - 1 : text.length();
        ByteArrayOutputStream out = new ByteArrayOutputStream(text.length() / GROUP * 3);
        int bits = 0;
        int held = 0;
        for (int i = 0; i < end; i++) {
            int value = LETTERS.indexOf(text.charAt(i));
            if (value < 0) {
                throw new IllegalArgumentException("is no Base64: '" + text.charAt(i) + "' at place " + i);
            }
            bits = bits << LETTER_BITS | value;
            held += LETTER_BITS;
            if (held >= BYTE_BITS) {
                held -= BYTE_BITS;
                out.write(bits >> held);
                bits &= (1 << held) - 1;
            }
        }
        return out.toByteArray();
    }
}
