package org.pocketbert.tokenizers.steps;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;

/** A text in pieces: stretches still to be cut or tokenized, and tokens that were found in it as they are. */
public final class Pieces {
    /** No token yet. */
    public static final int NO_TOKEN = -1;

    /**
     * One piece.
     *
     * @param text Its characters.
     * @param token Id of the token that it is, or {@link #NO_TOKEN}.
     */
    public record Part(Piece text, int token) {}

    private List<Part> parts = new ArrayList<>();

    /** Makes a list of one piece, the whole text. */
    public Pieces(Piece whole) {
        parts.add(new Part(whole, NO_TOKEN));
    }

    /** Returns the pieces in the order of the text. */
    public List<Part> parts() {
        return parts;
    }

    /** Replaces every piece that is no token by others; empty ones are left out. */
    public void split(Function<Piece, List<Part>> cut) {
        List<Part> made = new ArrayList<>(parts.size() + 16);
        for (Part part : parts) {
            if (part.token() != NO_TOKEN) {
                made.add(part);
                continue;
            }
            for (Part next : cut.apply(part.text())) {
                if (next.text().length() > 0) {
                    made.add(next);
                }
            }
        }
        parts = made;
    }

    /** Leaves out the pieces of which normalizing left nothing. */
    public void dropEmpty() {
        parts.removeIf(part -> part.text().length() == 0);
    }

    /** Replaces every piece that is no token by parts of it. */
    public void cut(Function<Piece, int[]> ranges) {
        split(piece -> {
            int[] found = ranges.apply(piece);
            List<Part> out = new ArrayList<>(found.length / 2);
            if (found.length == 2 && found[0] == 0 && found[1] == piece.length()) {
                out.add(new Part(piece, NO_TOKEN));
                return out;
            }
            for (int i = 0; i < found.length; i += 2) {
                if (found[i + 1] > found[i]) {
                    out.add(new Part(piece.slice(found[i], found[i + 1]), NO_TOKEN));
                }
            }
            return out;
        });
    }
}
