package org.pocketbert.tokenizers.steps;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;

/** A text in pieces: stretches still to be cut or tokenized, and tokens that were found in it as they are. */
public final class Pieces {
    /**
     * A token that was found in the text as it is.
     *
     * @param id Its id.
     * @param start Its first code point in the original text.
     * @param end The place behind its last one.
     * @param leading Code points of white space at its start.
     * @param trailing Code points of white space at its end.
     */
    public record Found(int id, int start, int end, int leading, int trailing) {}

    /**
     * One piece: a text or a token, the other one is null.
     *
     * @param text The characters.
     * @param token The token.
     */
    public record Part(Piece text, Found token) {
        /** Makes a piece of text. */
        public static Part of(Piece text) {
            return new Part(text, null);
        }
    }

    private List<Part> parts = new ArrayList<>();

    /** Makes a list of one piece, the whole text. */
    public Pieces(Piece whole) {
        parts.add(Part.of(whole));
    }

    /** Returns the pieces in the order of the text. */
    public List<Part> parts() {
        return parts;
    }

    /** Replaces every piece that is no token by others; empty ones are left out. */
    public void split(Function<Piece, List<Part>> cut) {
        List<Part> made = new ArrayList<>(parts.size() + 16);
        for (Part part : parts) {
            if (part.token() != null) {
                made.add(part);
                continue;
            }
            for (Part next : cut.apply(part.text())) {
                if (next.token() != null || next.text().length() > 0) {
                    made.add(next);
                }
            }
        }
        parts = made;
    }

    /** Leaves out the pieces of which normalizing left nothing. */
    public void dropEmpty() {
        parts.removeIf(part -> part.token() == null && part.text().length() == 0);
    }

    /** Replaces every piece that is no token by parts of it. */
    public void cut(Function<Piece, int[]> ranges) {
        split(piece -> {
            int[] found = ranges.apply(piece);
            List<Part> out = new ArrayList<>(found.length / 2);
            if (found.length == 2 && found[0] == 0 && found[1] == piece.length()) {
                out.add(Part.of(piece));
                return out;
            }
            for (int i = 0; i < found.length; i += 2) {
                if (found[i + 1] > found[i]) {
                    out.add(Part.of(piece.slice(found[i], found[i + 1])));
                }
            }
            return out;
        });
    }
}
