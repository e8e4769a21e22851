package org.pocketbert.tokenizers.models;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Cuts a word into characters and joins neighbours in the order of the merges (byte-pair encoding). */
public final class Bpe implements Model {
    private static final byte[] NOTHING = {};

    private final Vocabulary vocabulary;
    private final Merges merges;
    private final Options options;
    private final int unknown;
    private final byte[] prefix;
    private final byte[] suffix;
    private final int[] byteIds;

    /**
     * What a BPE model's file says.
     *
     * @param unknown Piece of unknown characters; null where they are left out.
     * @param prefix What pieces inside a word start with; empty if nothing.
     * @param suffix What the last piece of a word ends with; empty if nothing.
     * @param fuseUnknown Whether neighbouring unknown characters are one token.
     * @param byteFallback Whether unknown characters become the pieces of their bytes.
     * @param ignoreMerges Whether a word that the vocabulary has is taken as it is.
     */
    public record Options(
            String unknown, String prefix, String suffix, boolean fuseUnknown, boolean byteFallback, boolean ignoreMerges) {}

    /**
     * Makes one.
     *
     * @throws IllegalArgumentException If the vocabulary does not have the unknown piece.
     */
    public Bpe(Vocabulary vocabulary, Merges merges, Options options) {
        this.vocabulary = vocabulary;
        this.merges = merges;
        this.options = options;
        unknown = options.unknown() == null ? -1 : vocabulary.id(options.unknown());
        if (options.unknown() != null && unknown < 0) {
            throw new IllegalArgumentException(
                    "unknown characters are '" + options.unknown() + "', which the vocabulary does not have");
        }
        prefix = options.prefix().getBytes(StandardCharsets.UTF_8);
        suffix = options.suffix().getBytes(StandardCharsets.UTF_8);
        byteIds = options.byteFallback() ? BytePieces.ids(vocabulary) : null;
    }

    @Override
    public Vocabulary vocabulary() {
        return vocabulary;
    }

    @Override
    public void tokenize(byte[] word, int length, Tokens out) {
        if (options.ignoreMerges()) {
            int entry = vocabulary.find(Vocabulary.hash(Vocabulary.START, word, 0, length), NOTHING, word, 0, length);
            if (entry >= 0) {
                out.add(vocabulary.idOf(entry), 0, length);
                return;
            }
        }
        Symbols symbols = new Symbols(length);
        spell(word, length, symbols);
        symbols.merge();
        int at = 0;
        for (int i = 0; i < symbols.count; i++) {
            if (symbols.sizes[i] > 0) {
                out.add(symbols.ids[i], at, at + symbols.sizes[i]);
                at += symbols.sizes[i];
            }
        }
    }

    /** Finds the token of each character. What the vocabulary lacks is unknown, bytes, or left out: as the library does it. */
    private void spell(byte[] word, int length, Symbols symbols) {
        int pending = 0; // bytes of unknown characters that are not a symbol yet
        for (int start = 0; start < length; ) {
            int end = start + 1;
            while (end < length && (word[end] & 0xC0) == 0x80) {
                end++;
            }
            int id = characterId(word, start, end, length);
            if (id >= 0) {
                pending = symbols.flush(unknown, pending);
                symbols.add(id, end - start);
            } else if (byteIds != null && BytePieces.all(byteIds, word, start, end)) {
                for (int i = start; i < end; i++) {
                    symbols.add(byteIds[word[i] & 255], 1);
                }
            } else if (unknown >= 0) {
                if (!options.fuseUnknown()) {
                    pending = symbols.flush(unknown, pending);
                }
                pending += end - start;
            }
            start = end;
        }
        symbols.flush(unknown, pending);
    }

    private int characterId(byte[] word, int start, int end, int length) {
        byte[] head = start == 0 ? NOTHING : prefix;
        byte[] tail = end < length ? NOTHING : suffix;
        byte[] spelt = word;
        int from = start;
        int to = end;
        if (tail.length > 0) {
            spelt = Arrays.copyOfRange(word, start, end + tail.length);
            System.arraycopy(tail, 0, spelt, end - start, tail.length);
            from = 0;
            to = spelt.length;
        }
        int hash = Vocabulary.hash(Vocabulary.hash(Vocabulary.START, head, 0, head.length), spelt, from, to);
        int entry = vocabulary.find(hash, head, spelt, from, to);
        return entry < 0 ? -1 : vocabulary.idOf(entry);
    }

    /** The symbols of a word as a linked list, and a heap of the merges that are possible. */
    private final class Symbols {
        private final int[] ids;
        private final int[] sizes;
        private final int[] previous;
        private final int[] next;
        private int count;
        private long[] heap = new long[16]; // rank, then place
        private int[] results = new int[16];
        private int heapSize;

        Symbols(int most) {
            ids = new int[most];
            sizes = new int[most];
            previous = new int[most];
            next = new int[most];
        }

        void add(int id, int size) {
            ids[count] = id;
            sizes[count] = size;
            previous[count] = count - 1;
            next[count] = -1;
            if (count > 0) {
                next[count - 1] = count;
            }
            count++;
        }

        int flush(int id, int size) {
            if (size > 0) {
                add(id, size);
            }
            return 0;
        }

        void merge() {
            for (int i = 0; i + 1 < count; i++) {
                offer(i, i + 1);
            }
            while (heapSize > 0) {
                int place = (int) heap[0];
                int result = results[0];
                pop();
                if (sizes[place] == 0 || next[place] < 0) {
                    continue;
                }
                int right = next[place];
                int slot = merges.find(ids[place], ids[right]);
                if (slot < 0 || merges.result(slot) != result) {
                    continue; // one of both was merged since
                }
                ids[place] = result;
                sizes[place] += sizes[right];
                sizes[right] = 0;
                next[place] = next[right];
                if (next[right] >= 0) {
                    previous[next[right]] = place;
                }
                if (previous[place] >= 0) {
                    offer(previous[place], place);
                }
                if (next[place] >= 0) {
                    offer(place, next[place]);
                }
            }
        }

        private void offer(int left, int right) {
            int slot = merges.find(ids[left], ids[right]);
            if (slot < 0) {
                return;
            }
            if (heapSize == heap.length) {
                heap = Arrays.copyOf(heap, 2 * heapSize);
                results = Arrays.copyOf(results, 2 * heapSize);
            }
            long key = (long) merges.rank(slot) << 32 | left;
            int at = heapSize++;
            while (at > 0 && heap[at - 1 >> 1] > key) {
                heap[at] = heap[at - 1 >> 1];
                results[at] = results[at - 1 >> 1];
                at = at - 1 >> 1;
            }
            heap[at] = key;
            results[at] = merges.result(slot);
        }

        private void pop() {
            heapSize--;
            long key = heap[heapSize];
            int result = results[heapSize];
            int at = 0;
            for (int child = 1; child < heapSize; child = 2 * at + 1) {
                if (child + 1 < heapSize && heap[child + 1] < heap[child]) {
                    child++;
                }
                if (heap[child] >= key) {
                    break;
                }
                heap[at] = heap[child];
                results[at] = results[child];
                at = child;
            }
            heap[at] = key;
            results[at] = result;
        }
    }
}
