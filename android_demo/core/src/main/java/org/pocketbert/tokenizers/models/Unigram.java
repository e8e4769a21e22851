package org.pocketbert.tokenizers.models;

/** Cuts a word into the pieces with the largest sum of scores, as SentencePiece's unigram models do. */
public final class Unigram implements Model {
    private static final double UNKNOWN_PENALTY = 10.0;
    private static final byte[] NOTHING = {};

    private final Vocabulary vocabulary;
    private final double[] scores;
    private final double unknownScore;
    private final int unknown;
    private final int[] byteIds;
    private final int[] sorted;
    private final int[] firstBytes = new int[257];

    /**
     * Makes one.
     *
     * @param vocabulary The pieces; the id of each is its index.
     * @param scores The score of each piece, a logarithm of its probability.
     * @param unknown Id of the unknown piece.
     * @param byteFallback Whether unknown characters become the pieces of their bytes, {@code <0x41>}, where all are there.
     */
    public Unigram(Vocabulary vocabulary, double[] scores, int unknown, boolean byteFallback) {
        this.vocabulary = vocabulary;
        this.scores = scores;
        this.unknown = unknown;
        double least = Double.POSITIVE_INFINITY;
        for (double score : scores) {
            least = Math.min(least, score);
        }
        unknownScore = least - UNKNOWN_PENALTY;
        byteIds = byteFallback ? BytePieces.ids(vocabulary) : null;
        sorted = vocabulary.sorted();
        int entry = 0;
        for (int first = 0; first <= 256; first++) {
            while (entry < sorted.length && byteAt(entry, 0) < first) {
                entry++;
            }
            firstBytes[first] = entry;
        }
    }

    @Override
    public Vocabulary vocabulary() {
        return vocabulary;
    }

    @Override
    public void tokenize(byte[] word, int length, Tokens out) {
        double[] best = new double[length + 1];
        int[] from = new int[length + 1]; // 0: not reached; else the start of the last piece, plus 1
        int[] ids = new int[length + 1];
        for (int start = 0; start < length; ) {
            int end = start + 1;
            while (end < length && (word[end] & 0xC0) == 0x80) {
                end++;
            }
            if (!reach(word, length, start, end, best, from, ids)) {
                offer(best, from, ids, start, end, unknownScore, unknown);
            }
            start = end;
        }
        collect(word, length, from, ids, out);
    }

    /** Offers all pieces that start at a place; returns whether one is the single character there. */
    private boolean reach(byte[] word, int length, int start, int single, double[] best, int[] from, int[] ids) {
        boolean found = false;
        int low = firstBytes[word[start] & 255];
        int high = firstBytes[(word[start] & 255) + 1];
        for (int size = 1; low < high; size++) {
            if (pieceLength(low) == size) { // the shortest of a range come first, equal ones side by side
                while (low + 1 < high && pieceLength(low + 1) == size) {
                    low++;
                }
                int last = low++;
                int entry = sorted[last]; // of equal pieces the last one counts, and the sort keeps their order
                offer(best, from, ids, start, start + size, scores[entry], vocabulary.idOf(entry));
                found |= start + size == single;
            }
            if (start + size >= length) {
                break;
            }
            int next = word[start + size] & 255;
            low = bound(low, high, size, next);
            high = bound(low, high, size, next + 1);
        }
        return found;
    }

    private static void offer(double[] best, int[] from, int[] ids, int start, int end, double score, int id) {
        double candidate = score + best[start];
        if (from[end] == 0 || candidate > best[end]) {
            best[end] = candidate;
            from[end] = start + 1;
            ids[end] = id;
        }
    }

    private void collect(byte[] word, int length, int[] from, int[] ids, Tokens out) {
        int[] ends = new int[length + 1];
        int count = 0;
        for (int end = length; end > 0; end = from[end] - 1) {
            ends[count++] = end;
        }
        int start = 0;
        for (int i = count - 1; i >= 0; ) {
            int end = ends[i];
            boolean isUnknown = ids[end] == unknown;
            i--;
            while (isUnknown && i >= 0 && ids[ends[i]] == unknown) { // neighbours become one token
                end = ends[i--];
            }
            add(word, start, end, isUnknown ? -1 : ids[end], out);
            start = end;
        }
    }

    private void add(byte[] word, int start, int end, int known, Tokens out) {
        int id = known;
        if (id < 0) {
            int entry = vocabulary.find(Vocabulary.hash(Vocabulary.START, word, start, end), NOTHING, word, start, end);
            id = entry < 0 ? -1 : vocabulary.idOf(entry);
        }
        if (id < 0 && byteIds != null && BytePieces.all(byteIds, word, start, end)) {
            for (int i = start; i < end; i++) {
                out.add(byteIds[word[i] & 255], start, end);
            }
            return;
        }
        out.add(id < 0 ? unknown : id, start, end);
    }

    private int pieceLength(int index) {
        return vocabulary.pieces().length(sorted[index]);
    }

    private int byteAt(int index, int depth) {
        StringPool pieces = vocabulary.pieces();
        return pieces.length(sorted[index]) <= depth ? -1 : pieces.bytes()[pieces.start(sorted[index]) + depth] & 255;
    }

    /** Returns the first index from {@code low} on whose byte at a depth is at least one. */
    private int bound(int low, int high, int depth, int least) {
        int from = low;
        int to = high;
        while (from < to) {
            int middle = from + to >>> 1;
            if (byteAt(middle, depth) < least) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        return from;
    }
}
