package org.pocketbert.tokenizers.regex;

/** The text of a regular expression while it is read. */
final class RegexText {
    private final String pattern;
    private final int[] codes;
    private int at;

    RegexText(String pattern) {
        this.pattern = pattern;
        this.codes = pattern.codePoints().toArray();
    }

    boolean atEnd() {
        return at >= codes.length;
    }

    /** Returns the next character without taking it; -1 at the end. */
    int peek() {
        return peek(0);
    }

    int peek(int ahead) {
        return at + ahead < codes.length ? codes[at + ahead] : -1;
    }

    int next() {
        if (atEnd()) {
            throw refused("an end in the middle");
        }
        return codes[at++];
    }

    boolean take(int code) {
        if (peek() != code) {
            return false;
        }
        at++;
        return true;
    }

    int number(int most) {
        int out = 0;
        int digits = 0;
        while (peek() >= '0' && peek() <= '9') {
            out = Math.min(10 * out + next() - '0', most + 1);
            digits++;
        }
        if (digits == 0 || out > most) {
            throw refused("a count that is no number up to " + most);
        }
        return out;
    }

    /** Takes the characters up to one, which is taken too. */
    String until(int code) {
        StringBuilder out = new StringBuilder();
        for (int next = next(); next != code; next = next()) {
            out.appendCodePoint(next);
        }
        return out.toString();
    }

    IllegalArgumentException refused(String what) {
        String shown = pattern.length() > 60 ? pattern.substring(0, 60) + "..." : pattern;
        return new IllegalArgumentException("regular expression '" + shown + "' has " + what + " at character " + at + ", not supported");
    }
}
