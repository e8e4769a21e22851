package org.pocketbert.tokenizers.steps;

import java.io.ByteArrayOutputStream;
import java.nio.charset.Charset;

/** Spells each byte of UTF-8 as one visible character, as byte-level BPE vocabularies do: a blank is {@code Ġ}. */
public final class ByteLetters {
    /** What a blank is spelt as. */
    public static final int BLANK = 0x120;

    private static final int[] LETTERS = letters();

    private ByteLetters() {}

    static void spell(Piece piece) {
        Changes made = new Changes(piece.length() + 16);
        for (int i = 0; i < piece.length(); i++) {
            int code = piece.code(i);
            if (code < 0x80) {
                made.add(LETTERS[code], 0);
                continue;
            }
            int bytes = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
            int lead = bytes == 2 ? 0xC0 : bytes == 3 ? 0xE0 : 0xF0;
            made.add(LETTERS[lead | code >> 6 * (bytes - 1)], 0);
            for (int k = bytes - 2; k >= 0; k--) {
                made.add(LETTERS[0x80 | code >> 6 * k & 0x3F], 1);
            }
        }
        piece.transform(made, 0);
    }

    /** Returns the text of bytes that a token spells; what is no byte letter stays as it is. */
    public static String read(String token, Charset charset) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        token.codePoints().forEach(letter -> {
            for (int b = 0; b < LETTERS.length; b++) {
                if (LETTERS[b] == letter) {
                    bytes.write(b);
                    return;
                }
            }
            byte[] other = new String(Character.toChars(letter)).getBytes(charset);
            bytes.write(other, 0, other.length);
        });
        return new String(bytes.toByteArray(), charset);
    }

    private static int[] letters() {
        int[] out = new int[256];
        int next = 256;
        for (int b = 0; b < 256; b++) {
            boolean visible = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
            out[b] = visible ? b : next++;
        }
        return out;
    }
}
