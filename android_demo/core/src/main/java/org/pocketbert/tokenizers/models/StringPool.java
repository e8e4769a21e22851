package org.pocketbert.tokenizers.models;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Many short texts as UTF-8 in one array: a quarter of the memory of as many {@code String} objects. */
public final class StringPool {
    private byte[] bytes = new byte[1 << 16];
    private int[] ends = new int[1 << 12];
    private int size;

    /** Adds a text; returns its index. */
    public int add(String text) {
        byte[] raw = text.getBytes(StandardCharsets.UTF_8);
        int start = size == 0 ? 0 : ends[size - 1];
        if (start + raw.length > bytes.length) {
            bytes = Arrays.copyOf(bytes, Math.max(bytes.length + (bytes.length >> 1), start + raw.length));
        }
        if (size == ends.length) {
            ends = Arrays.copyOf(ends, size + (size >> 1));
        }
        System.arraycopy(raw, 0, bytes, start, raw.length);
        ends[size] = start + raw.length;
        return size++;
    }

    /** Frees what was reserved for more texts. */
    public void trim() {
        bytes = Arrays.copyOf(bytes, size == 0 ? 0 : ends[size - 1]);
        ends = Arrays.copyOf(ends, size);
    }

    /** Returns the number of texts. */
    public int size() {
        return size;
    }

    /** Returns a text. */
    public String get(int index) {
        return new String(bytes, start(index), length(index), StandardCharsets.UTF_8);
    }

    byte[] bytes() {
        return bytes;
    }

    int start(int index) {
        return index == 0 ? 0 : ends[index - 1];
    }

    int length(int index) {
        return ends[index] - start(index);
    }
}
