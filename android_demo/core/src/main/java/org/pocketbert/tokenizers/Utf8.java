package org.pocketbert.tokenizers;

/** Code points as UTF-8, with the way back from bytes to code points. Used again for each word. */
final class Utf8 {
    private byte[] bytes = new byte[256];
    private int[] indexes = new int[256];
    private int length;

    void encode(int[] codes, int count) {
        if (bytes.length < 4L * count) {
            bytes = new byte[4 * count];
            indexes = new int[4 * count];
        }
        length = 0;
        for (int i = 0; i < count; i++) {
            int code = codes[i];
            if (code < 0x80) {
                put(code, i);
            } else if (code < 0x800) {
                put(0xC0 | code >> 6, i);
                put(0x80 | code & 0x3F, i);
            } else {
                if (code < 0x10000) {
                    put(0xE0 | code >> 12, i);
                } else {
                    put(0xF0 | code >> 18, i);
                    put(0x80 | code >> 12 & 0x3F, i);
                }
                put(0x80 | code >> 6 & 0x3F, i);
                put(0x80 | code & 0x3F, i);
            }
        }
    }

    private void put(int value, int index) {
        bytes[length] = (byte) value;
        indexes[length++] = index;
    }

    byte[] bytes() {
        return bytes;
    }

    int length() {
        return length;
    }

    /** Returns the code point that a byte belongs to. */
    int index(int at) {
        return indexes[at];
    }
}
