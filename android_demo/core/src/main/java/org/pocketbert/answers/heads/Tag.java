package org.pocketbert.answers.heads;

import java.util.ArrayList;
import java.util.List;

/**
 * Reads tags of words as IOB2 is read strictly: a piece is a {@code B-} and the {@code I-} of the same label behind it.
 *
 * <p>Where no tag has a prefix, as those of parts of speech have none, every word inside is a piece of its own.
 */
final class Tag {
    /** Tag of words that belong to no piece. */
    static final String OUTSIDE = "O";

    private Tag() {}

    /** Holds a named piece; its ends are in code points. */
    record Run(int start, int end, String label) {}

    /** Returns the label in a tag, or null outside. */
    static String label(String tag) {
        if (tag.equals(OUTSIDE)) {
            return null;
        }
        return begins(tag) || continues(tag) ? tag.substring(2) : tag;
    }

    /**
     * Returns the pieces that tags spell.
     *
     * @param tags all tags in order of their ids
     * @param chosen id of the tag of each word
     * @param words the words
     */
    static List<Run> runs(List<String> tags, List<Integer> chosen, List<Word> words) {
        boolean joins = tags.stream().anyMatch(tag -> begins(tag) || continues(tag));
        List<Run> out = new ArrayList<>();
        String open = null;
        for (int i = 0; i < words.size(); i++) {
            String tag = tags.get(chosen.get(i));
            String label = label(tag);
            Word word = words.get(i);
            if (joins && label != null && label.equals(open) && !begins(tag)) {
                Run begun = out.remove(out.size() - 1);
                out.add(new Run(begun.start(), word.end(), label));
                continue;
            }
            open = null;
            if (label != null && !continues(tag)) { // a continuation without a beginning is nothing
                out.add(new Run(word.start(), word.end(), label));
                open = label;
            }
        }
        return out;
    }

    private static boolean begins(String tag) {
        return tag.startsWith("B-") || tag.startsWith("S-");
    }

    private static boolean continues(String tag) {
        return tag.startsWith("I-") || tag.startsWith("E-");
    }
}
