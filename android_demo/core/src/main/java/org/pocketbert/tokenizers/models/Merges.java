package org.pocketbert.tokenizers.models;

/** The merges of a BPE model: which two tokens become which one, and in what order. Immutable once made. */
public final class Merges {
    private final long[] pairs;
    private final int[] ranks;
    private final int[] made;
    private int count;

    /** Makes an empty list with room for some merges. */
    public Merges(int capacity) {
        int room = Integer.highestOneBit(Math.max(4, capacity)) * 4;
        pairs = new long[room];
        ranks = new int[room];
        made = new int[room];
    }

    /** Adds a merge; its rank is the number of those before it. Of equal pairs the last one counts, as in the library. */
    public void add(int left, int right, int result) {
        int slot = slot(left, right);
        pairs[slot] = key(left, right);
        ranks[slot] = count++;
        made[slot] = result;
    }

    /** Returns the slot of a pair, or -1. */
    int find(int left, int right) {
        int slot = slot(left, right);
        return pairs[slot] == 0 ? -1 : slot;
    }

    int rank(int slot) {
        return ranks[slot];
    }

    int result(int slot) {
        return made[slot];
    }

    private static long key(int left, int right) {
        return (long) left << 32 | right + 1;
    }

    private int slot(int left, int right) {
        long key = key(left, right);
        long mixed = key * 0x9E3779B97F4A7C15L;
        int slot = (int) (mixed >>> 32) & pairs.length - 1;
        while (pairs[slot] != 0 && pairs[slot] != key) {
            slot = slot + 1 & pairs.length - 1;
        }
        return slot;
    }
}
