package org.pocketbert.answers;

/** Translates places in code points, which models and files count, into places in Java's UTF-16 text. */
public final class CodePoints {
    private CodePoints() {}

    /** Returns the UTF-16 index of a place in code points; places beyond the end are the end. */
    public static int index(String text, int place) {
        if (place >= text.length()) { // there are never more code points than UTF-16 units
            return text.length();
        }
        int count = Math.min(place, text.codePointCount(0, text.length()));
        return text.offsetByCodePoints(0, count);
    }

    /** Returns a piece of a text, its ends in code points. */
    public static String piece(String text, int start, int end) {
        return end <= start ? "" : text.substring(index(text, start), index(text, end));
    }

    /** Returns a place, in code points, moved over the blanks in front of {@code end}. */
    public static int afterBlanks(String text, int start, int end) {
        int at = index(text, start);
        while (start < end && at < text.length() && isBlank(text.codePointAt(at))) {
            at += Character.charCount(text.codePointAt(at));
            start++;
        }
        return start;
    }

    private static boolean isBlank(int codePoint) {
        return Character.isWhitespace(codePoint) || Character.isSpaceChar(codePoint);
    }
}
