package org.pocketbert.tokenizers;

import java.util.Arrays;

/** Decodes Base64; Java's own decoder is not there on Android 7. */
final class Base64Text {
    private static final String LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    private Base64Text() {}

    /**
     * Decodes a text.
     *
     * @throws IllegalArgumentException If it is no Base64, or not padded to groups of four.
     */
    static byte[] decode(String text) {
        int padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
        if (text.length() % 4 != 0) {
            throw new IllegalArgumentException("has " + text.length() + " characters, Base64 has groups of four");
        }
        byte[] out = new byte[text.length() / 4 * 3];
        int made = 0;
        int bits = 0;
        for (int i = 0; i < text.length(); i++) {
            boolean pad = i >= text.length() - padding;
            int value = pad ? 0 : LETTERS.indexOf(text.charAt(i));
            if (value < 0) {
                throw new IllegalArgumentException("is no Base64 at character " + i);
            }
            bits = bits << 6 | value;
            if (i % 4 == 3) {
                out[made++] = (byte) (bits >> 16);
                out[made++] = (byte) (bits >> 8);
                out[made++] = (byte) bits;
                bits = 0;
            }
        }
        return Arrays.copyOf(out, made - padding);
    }
}
