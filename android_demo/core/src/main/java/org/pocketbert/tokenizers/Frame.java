package org.pocketbert.tokenizers;

import java.util.List;

/** Puts special tokens around one text or two (the post-processor of tokenizer.json), and may cut white space from places. */
final class Frame {
    /** A text of the frame. */
    static final int FIRST = -1;
    /** The other text. */
    static final int SECOND = -2;

    /**
     * A text, or a special token.
     *
     * @param id {@link #FIRST}, {@link #SECOND}, or the id of a special token.
     * @param type Its segment id; -1 where the text keeps its own.
     */
    record Slot(int id, int type) {}

    /**
     * How places lose white space.
     *
     * @param prefixSpace Whether one blank at the start of the text is not in the text itself.
     */
    record Trim(boolean prefixSpace) {}

    private final boolean keepsTypes;
    private final List<Slot> single;
    private final List<Slot> pair;
    private final List<Trim> trims;

    /**
     * Makes one.
     *
     * @param keepsTypes Whether windows behind the first one keep the segment ids that their texts have without a frame, 0 and 1, as
     *     the library does it with a template.
     */
    Frame(List<Slot> single, List<Slot> pair, List<Trim> trims, boolean keepsTypes) {
        this.keepsTypes = keepsTypes;
        this.single = List.copyOf(single);
        this.pair = List.copyOf(pair);
        this.trims = List.copyOf(trims);
    }

    /** Returns the frame of a tokenizer without a post-processor. */
    static Frame none() {
        return new Frame(
                List.of(new Slot(FIRST, -1)), List.of(new Slot(FIRST, -1), new Slot(SECOND, -1)), List.of(), false);
    }

    Frame with(List<Trim> otherTrims) {
        return new Frame(single, pair, otherTrims, keepsTypes);
    }

    boolean trims() {
        return !trims.isEmpty();
    }

    int specialTokens(boolean ofPair) {
        return (int) (ofPair ? pair : single).stream().filter(slot -> slot.id() >= 0).count();
    }

    Row around(Row first, Row second) {
        return around(first, second, false);
    }

    /** Puts the special tokens around a text or two; {@code later} in the windows behind the first one. */
    Row around(Row first, Row second, boolean later) {
        trims.forEach(trim -> {
            cut(first, trim.prefixSpace());
            if (second != null) {
                cut(second, trim.prefixSpace());
            }
        });
        Row out = new Row(first.size() + (second == null ? 0 : second.size()) + 8);
        for (Slot slot : second == null ? single : pair) {
            if (slot.id() >= 0) {
                out.addSpecial(slot.id(), slot.type());
            } else {
                                boolean own = later && keepsTypes && slot.id() == SECOND;
                out.addAll(slot.id() == FIRST ? first : second, own ? -1 : slot.type());
            }
        }
        return out;
    }

    private static void cut(Row row, boolean prefixSpace) {
        for (int i = 0; i < row.size(); i++) {
            int leading = row.get(i, Row.LEADING);
            int trailing = row.get(i, Row.TRAILING);
            int start = row.get(i, Row.START);
            int end = row.get(i, Row.END);
            if (leading > 0) {
                boolean first = i == 0 || start == 0;
                start = Math.min(start + (first && prefixSpace && leading == 1 ? 0 : leading), end);
            }
            if (trailing > 0 && end >= trailing) {
                end = Math.max(end - trailing, start);
            }
            row.set(i, Row.START, start);
            row.set(i, Row.END, end);
        }
    }
}
