package org.pocketbert.tokenizers.models;

import java.nio.charset.StandardCharsets;

/** The pieces of a vocabulary and their ids; a piece is found by the bytes of its UTF-8. Immutable once made. */
public final class Vocabulary {
    /** Hash of no bytes. */
    static final int START = 0x811C9DC5;

    private static final byte[] NOTHING = {};

    private final StringPool pieces;
    private final int[] ids;
    private final int[] hashes;
    private final int[] slots;
    private final int longest;
    private int[] byId;

    /**
     * Makes one.
     *
     * @param pieces The pieces.
     * @param ids The id of each.
     * @param lastWins Whether a piece that is there twice is the last one; else it is refused.
     * @throws IllegalArgumentException If a piece is there twice.
     */
    public Vocabulary(StringPool pieces, int[] ids, boolean lastWins) {
        pieces.trim();
        this.pieces = pieces;
        this.ids = ids;
        hashes = new int[pieces.size()];
        int room = Integer.highestOneBit(Math.max(4, pieces.size())) * 4;
        slots = new int[room];
        int most = 0;
        for (int i = 0; i < pieces.size(); i++) {
            hashes[i] = hash(START, pieces.bytes(), pieces.start(i), pieces.start(i) + pieces.length(i));
            most = Math.max(most, pieces.length(i));
            int slot = slot(hashes[i]);
            while (slots[slot] != 0 && !same(slots[slot] - 1, i)) {
                slot = slot + 1 & room - 1;
            }
            if (slots[slot] != 0 && !lastWins) {
                throw new IllegalArgumentException("has the piece '" + pieces.get(i) + "' twice");
            }
            slots[slot] = i + 1;
        }
        longest = most;
    }

    /** Returns the number of pieces. */
    public int size() {
        return pieces.size();
    }

    /** Returns the number of bytes of the longest piece. */
    public int longest() {
        return longest;
    }

    /** Returns the id of a piece, or -1. */
    public int id(String piece) {
        byte[] raw = piece.getBytes(StandardCharsets.UTF_8);
        int entry = find(hash(START, raw, 0, raw.length), NOTHING, raw, 0, raw.length);
        return entry < 0 ? -1 : ids[entry];
    }

    /** Returns the piece that has an id; the empty text where none has. */
    public synchronized String piece(int id) {
        if (byId == null) {
            int last = 0;
            for (int known : ids) {
                last = Math.max(last, known);
            }
            byId = new int[last + 1];
            for (int i = 0; i < ids.length; i++) {
                byId[ids[i]] = i + 1;
            }
        }
        return id < 0 || id >= byId.length || byId[id] == 0 ? "" : pieces.get(byId[id] - 1);
    }

    StringPool pieces() {
        return pieces;
    }

    int idOf(int entry) {
        return ids[entry];
    }

    /** Continues the hash of some bytes with more bytes. */
    static int hash(int so, byte[] bytes, int from, int to) {
        int out = so;
        for (int i = from; i < to; i++) {
            out = (out ^ bytes[i] & 255) * 0x01000193;
        }
        return out;
    }

    /** Returns the entry of a piece that is {@code prefix} and some bytes, whose hash is known; -1 where there is none. */
    int find(int hash, byte[] prefix, byte[] bytes, int from, int to) {
        int slot = slot(hash);
        int length = prefix.length + to - from;
        for (int entry = slots[slot] - 1; entry >= 0; entry = slots[slot] - 1) {
            if (hashes[entry] == hash && pieces.length(entry) == length) {
                int start = pieces.start(entry);
                if (equal(start, prefix, 0, prefix.length) && equal(start + prefix.length, bytes, from, to)) {
                    return entry;
                }
            }
            slot = slot + 1 & slots.length - 1;
        }
        return -1;
    }

    private int slot(int hash) {
        return (hash ^ hash >>> 15) * 0x9E3779B1 >>> 7 & slots.length - 1;
    }

    private boolean equal(int start, byte[] bytes, int from, int to) {
        byte[] all = pieces.bytes();
        for (int i = from; i < to; i++) {
            if (all[start + i - from] != bytes[i]) {
                return false;
            }
        }
        return true;
    }

    private boolean same(int one, int other) {
        if (hashes[one] != hashes[other] || pieces.length(one) != pieces.length(other)) {
            return false;
        }
        int start = pieces.start(other);
        return equal(pieces.start(one), pieces.bytes(), start, start + pieces.length(other));
    }

    /** Returns the entries in the order of their bytes. */
    int[] sorted() {
        int[] from = new int[size()];
        for (int i = 0; i < from.length; i++) {
            from[i] = i;
        }
        int[] to = from.clone();
        for (int width = 1; width < from.length; width *= 2) {
            for (int low = 0; low < from.length; low += 2 * width) {
                merge(from, to, low, Math.min(low + width, from.length), Math.min(low + 2 * width, from.length));
            }
            int[] kept = from;
            from = to;
            to = kept;
        }
        return from;
    }

    private void merge(int[] from, int[] to, int low, int middle, int high) {
        int left = low;
        int right = middle;
        for (int i = low; i < high; i++) {
            boolean first = right >= high || (left < middle && compare(from[left], from[right]) <= 0);
            to[i] = first ? from[left++] : from[right++];
        }
    }

    private int compare(int one, int other) {
        byte[] all = pieces.bytes();
        int length = Math.min(pieces.length(one), pieces.length(other));
        for (int i = 0; i < length; i++) {
            int difference = (all[pieces.start(one) + i] & 255) - (all[pieces.start(other) + i] & 255);
            if (difference != 0) {
                return difference;
            }
        }
        return pieces.length(one) - pieces.length(other);
    }
}
