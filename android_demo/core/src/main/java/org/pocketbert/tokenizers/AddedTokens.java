package org.pocketbert.tokenizers;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.pocketbert.tokenizers.steps.Piece;
import org.pocketbert.tokenizers.steps.Pieces;
import org.pocketbert.tokenizers.unicode.CodePointSet;
import org.pocketbert.tokenizers.unicode.Unicode;

/** Finds tokens in a text as they are, the longest one from the leftmost place on: special tokens and others that were added. */
final class AddedTokens {
    /**
     * An added token as tokenizer.json describes it.
     *
     * @param content Its text.
     * @param singleWord Whether it counts only between characters that are no part of a word.
     * @param lstrip Whether white space before it belongs to it.
     * @param rstrip Whether white space behind it belongs to it.
     * @param normalized Whether it is looked for in the normalized text.
     * @param special Whether it is a special token.
     */
    record Added(String content, boolean singleWord, boolean lstrip, boolean rstrip, boolean normalized, boolean special) {}

    private final Map<Long, Integer> children = new HashMap<>(); // of node and character
    private final List<Integer> tokens = new ArrayList<>(List.of(-1)); // id that ends at a node, or -1
    private final Map<Integer, Added> byId;
    private final CodePointSet firsts;

    /**
     * Makes one.
     *
     * @param byId The tokens.
     * @param texts What is looked for, by id.
     */
    AddedTokens(Map<Integer, Added> byId, Map<Integer, String> texts) {
        this.byId = Map.copyOf(byId);
        texts.forEach((id, text) -> {
            int node = 0;
            for (int code : text.codePoints().toArray()) {
                Integer next = children.get(key(node, code));
                if (next == null) {
                    next = tokens.size();
                    children.put(key(node, code), next);
                    tokens.add(-1);
                }
                node = next;
            }
            if (node == 0) {
                return; // nothing of it is left once it is normalized, so that it is never found
            }
            if (tokens.get(node) >= 0) { // the library finds either of them, a different one each time
                throw new IllegalArgumentException("'" + byId.get(id).content() + "' is, once normalized, the same as '"
                        + byId.get(tokens.get(node)).content() + "'");
            }
            tokens.set(node, id);
        });
        int[] runs = texts.values().stream().filter(text -> !text.isEmpty())
                .flatMapToInt(text -> java.util.stream.IntStream.of(text.codePointAt(0), text.codePointAt(0))).toArray();
        firsts = CodePointSet.of(runs);
    }

    /** Cuts the added tokens out of the pieces of a text. */
    void extract(Pieces pieces) {
        if (!children.isEmpty()) {
            pieces.split(this::split);
        }
    }

    private static long key(int node, int code) {
        return (long) node << 32 | code;
    }

    private List<Pieces.Part> split(Piece text) {
        List<Pieces.Part> out = new ArrayList<>();
        int last = 0;
        int at = 0;
        int spaceEnd = 0;
        int[] blanks = {0, 0};
        while (at < text.length()) {
            int found = firsts.contains(text.code(at)) ? longest(text, at) : 0;
            if (found == 0) {
                at++;
                continue;
            }
            int start = at;
            int stop = at + found;
            int id = tokenAt(text, start, stop);
            at = stop;
            Added token = byId.get(id);
            if (token.singleWord() && (isWord(text, start - 1) || isWord(text, stop))) {
                continue;
            }
            if (token.lstrip()) {
                int first = start;
                while (first > 0 && Unicode.SPACE.contains(text.code(first - 1))) {
                    first--;
                }
                start = Math.max(first, last);
            }
            if (token.rstrip()) {
                spaceEnd = stop < spaceEnd ? spaceEnd : spaceEnd(text, stop); // tokens of blanks may overlap: each run is read once
                stop = spaceEnd;
            }
            if (last < start) {
                out.add(Pieces.Part.of(text.slice(last, start)));
            }
            out.add(new Pieces.Part(null, found(text, start, stop, id, blanks)));
            last = stop;
        }
        if (last == 0) {
            return List.of(Pieces.Part.of(text));
        }
        if (last != text.length()) {
            out.add(Pieces.Part.of(text.slice(last, text.length())));
        }
        return out;
    }

    private static int spaceEnd(Piece text, int from) {
        int end = from;
        while (end < text.length() && Unicode.SPACE.contains(text.code(end))) {
            end++;
        }
        return end;
    }

    /** Counts the blanks at both ends of a token; {@code run} is the last run of blanks that was read, and is kept up to date. */
    private static Pieces.Found found(Piece text, int from, int to, int id, int[] run) {
        if (from < run[0] || from >= run[1]) {
            run[0] = from;
            run[1] = from;
            while (run[1] < text.length() && Tokenizer.isBlank(text.code(run[1]))) {
                run[1]++;
            }
        }
        int leading = Math.min(run[1], to) - from;
        int trailing = 0;
        while (leading < to - from && Tokenizer.isBlank(text.code(to - 1 - trailing))) {
            trailing++;
        }
        return new Pieces.Found(id, text.start(from), text.end(to - 1), leading, leading == to - from ? leading : trailing);
    }

    private int longest(Piece text, int from) {
        int best = 0;
        int node = 0;
        for (int at = from; at < text.length(); at++) {
            Integer next = children.get(key(node, text.code(at)));
            if (next == null) {
                break;
            }
            node = next;
            if (tokens.get(node) >= 0) {
                best = at + 1 - from;
            }
        }
        return best;
    }

    private int tokenAt(Piece text, int from, int to) {
        int node = 0;
        for (int at = from; at < to; at++) {
            node = children.get(key(node, text.code(at)));
        }
        return tokens.get(node);
    }

    private static boolean isWord(Piece text, int at) {
        return at >= 0 && at < text.length() && Unicode.WORD.contains(text.code(at));
    }
}
