package org.pocketbert.tokenizers.steps;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.pocketbert.tokenizers.unicode.Graphemes;

/** Replaces characters by a table of SentencePiece: a double array over bytes that leads to texts, each ended by a zero byte. */
public final class Precompiled implements Normalizer {
    private static final int LONGEST = 6;

    private final int[] units;
    private final byte[] texts;

    /**
     * Makes one of a model's {@code precompiled_charsmap}.
     *
     * @param table The table, decoded from Base64.
     * @throws IllegalArgumentException If it is broken.
     */
    public Precompiled(byte[] table) {
        if (table.length < 4) {
            throw new IllegalArgumentException("has " + table.length + " bytes, at least 4 are needed");
        }
        long size = integer(table, 0) & 0xFFFFFFFFL;
        if (size % 4 != 0 || size == 0 || size > table.length - 4) {
            throw new IllegalArgumentException("names " + size + " bytes of nodes and has " + (table.length - 4));
        }
        units = new int[(int) (size / 4)];
        for (int i = 0; i < units.length; i++) {
            units[i] = integer(table, 4 + 4 * i);
        }
        texts = new byte[table.length - 4 - (int) size];
        System.arraycopy(table, 4 + (int) size, texts, 0, texts.length);
    }

    @Override
    public void normalize(Piece piece) {
        Changes made = new Changes(piece.length() + 16);
        boolean modified = false;
        int[] codes = piece.codes();
        byte[] bytes = new byte[LONGEST];
        for (int start = 0; start < piece.length(); ) {
            int end = Graphemes.next(codes, start, piece.length());
            int size = encode(codes, start, end, bytes);
            int text = size < LONGEST ? find(bytes, size) : -1;
            if (text >= 0) {
                replace(made, end - start, text);
                modified = true;
                start = end;
                continue;
            }
            for (; start < end; start++) { // one by one, also of a single character that was found above by itself
                text = find(bytes, encode(codes, start, start + 1, bytes));
                if (text >= 0) {
                    replace(made, 1, text);
                    modified = true;
                } else {
                    made.add(codes[start], 0);
                }
            }
        }
        if (modified) {
            piece.transform(made, 0);
        }
    }

    private void replace(Changes made, int oldCount, int text) {
        int end = text;
        while (end < texts.length && texts[end] != 0) {
            end++;
        }
        int before = made.size();
        List<Integer> codes = new ArrayList<>();
        new String(texts, text, end - text, StandardCharsets.UTF_8).codePoints().forEach(codes::add);
        for (int code : codes) {
            made.add(code, 0);
        }
        int more = made.size() - before - oldCount;
        for (int i = 0; i < more; i++) {
            made.setChange(made.size() - 1 - i, 1);
        }
        if (more < 0 && made.size() > 0) {
            made.change(made.size() - 1, more);
        }
    }

    /** Writes code points as UTF-8; returns the number of bytes, or {@code LONGEST} where there are at least as many. */
    private static int encode(int[] codes, int start, int end, byte[] out) {
        int size = 0;
        for (int i = start; i < end; i++) {
            int code = codes[i];
            int bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
            if (size + bytes >= LONGEST) {
                return LONGEST;
            }
            if (bytes == 1) {
                out[size++] = (byte) code;
                continue;
            }
            out[size++] = (byte) ((bytes == 2 ? 0xC0 : bytes == 3 ? 0xE0 : 0xF0) | code >> 6 * (bytes - 1));
            for (int k = bytes - 2; k >= 0; k--) {
                out[size++] = (byte) (0x80 | code >> 6 * k & 0x3F);
            }
        }
        return size;
    }

    /** Returns where the text of the shortest key starts that these bytes start with; -1 where there is none. */
    private int find(byte[] bytes, int size) {
        int unit = units[0];
        int node = offset(unit);
        for (int i = 0; i < size; i++) {
            int label = bytes[i] & 255;
            node ^= label;
            if (label == 0 || node < 0 || node >= units.length) {
                return -1;
            }
            unit = units[node];
            if ((unit & (0x80000000 | 255)) != label) {
                return -1;
            }
            node ^= offset(unit);
            if ((unit & 256) != 0) {
                return node < 0 || node >= units.length ? -1 : Math.min(units[node] & 0x7FFFFFFF, texts.length);
            }
        }
        return -1;
    }

    private static int offset(int unit) {
        return (unit >>> 10) << ((unit & 512) >> 6);
    }

    private static int integer(byte[] raw, int at) {
        return raw[at] & 255 | (raw[at + 1] & 255) << 8 | (raw[at + 2] & 255) << 16 | (raw[at + 3] & 255) << 24;
    }
}
