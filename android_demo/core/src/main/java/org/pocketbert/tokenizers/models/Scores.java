package org.pocketbert.tokenizers.models;

/**
 * Reads the scores of a unigram model as the {@code tokenizers} library reads them.
 *
 * <p>Its JSON library rounds twice: the digits to a double, then that divided by a power of ten. One score in eight is off by its
 * last bit, which decides between two ways to cut a word that score the same.
 */
public final class Scores {
    private static final int MOST_POWER = 308;
    private static final int MOST_CHARACTERS = 400;
    private static final long TENTH = 1_844_674_407_370_955_161L; // of the largest unsigned number
    private static final double[] POWERS = powers();

    private Scores() {}

    /**
     * Reads a number.
     *
     * @param text A JSON number.
     * @throws IllegalArgumentException If it is none, or too large.
     */
    public static double parse(String text) {
        if (text.length() > MOST_CHARACTERS || !isNumber(text)) {
            throw new IllegalArgumentException("the score '" + text.substring(0, Math.min(60, text.length())) + "' is no number");
        }
        boolean negative = text.startsWith("-");
        int at = negative ? 1 : 0;
        long digits = 0; // unsigned
        int exponent = 0;
        boolean full = false;
        boolean behindPoint = false;
        for (; at < text.length(); at++) {
            char next = text.charAt(at);
            if (next == '.') {
                behindPoint = true;
                full = false;
                continue;
            }
            if (next == 'e' || next == 'E') {
                break;
            }
            int digit = next - '0';
            full |= digits < 0 || digits > TENTH || (digits == TENTH && digit > 5); // the next digit would not fit
            if (!full) {
                digits = digits * 10 + digit;
            }
            if (behindPoint) {
                exponent -= full ? 0 : 1;
            } else {
                exponent += full ? 1 : 0;
            }
        }
        if (at < text.length()) {
            exponent += Integer.parseInt(text.substring(at + 1).replace("+", ""));
        }
        double out = scaled(unsigned(digits), exponent);
        return negative ? -out : out;
    }

    /** Whether it is a number as JSON writes them, with an exponent of at most five digits. */
    private static boolean isNumber(String text) {
        int at = text.startsWith("-") ? 1 : 0;
        int whole = digits(text, at);
        boolean right = whole > at && (text.charAt(at) != '0' || whole == at + 1);
        at = whole;
        if (right && at < text.length() && text.charAt(at) == '.') {
            int end = digits(text, at + 1);
            right = end > at + 1;
            at = end;
        }
        if (right && at < text.length() && (text.charAt(at) == 'e' || text.charAt(at) == 'E')) {
            at++;
            at += at < text.length() && (text.charAt(at) == '+' || text.charAt(at) == '-') ? 1 : 0;
            int end = digits(text, at);
            right = end > at && end <= at + 5;
            at = end;
        }
        return right && at == text.length();
    }

    private static int digits(String text, int from) {
        int at = from;
        while (at < text.length() && text.charAt(at) >= '0' && text.charAt(at) <= '9') {
            at++;
        }
        return at;
    }

    private static double[] powers() {
        double[] out = new double[MOST_POWER + 1];
        for (int i = 0; i < out.length; i++) {
            out[i] = Double.parseDouble("1e" + i);
        }
        return out;
    }

    private static double scaled(double digits, int power) {
        double out = digits;
        int exponent = power;
        while (Math.abs(exponent) > MOST_POWER && out != 0) {
            if (exponent > 0) {
                throw new IllegalArgumentException("a score is too large for a number");
            }
            out /= 1e308;
            exponent += MOST_POWER;
        }
        if (out == 0) {
            return 0;
        }
        double ten = POWERS[Math.abs(exponent)];
        out = exponent >= 0 ? out * ten : out / ten;
        if (Double.isInfinite(out)) {
            throw new IllegalArgumentException("a score is too large for a number");
        }
        return out;
    }

    private static double unsigned(long value) {
        if (value >= 0) {
            return value;
        }
        double half = value >>> 1 | value & 1; // the lost bit stays, so that the rounding is right
        return half * 2;
    }
}
