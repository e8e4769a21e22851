package org.pocketbert.tokenizers;

/**
 * How long an input may become.
 *
 * @param maxLength Most tokens of an input, special tokens included; at least 1.
 * @param stride Tokens that two neighbouring windows of a long text share; 0 where there are no windows.
 * @param keepsEnd Whether the beginning of a text that is too long is cut off, and not its end; windows have no such side.
 */
public record Limits(int maxLength, int stride, boolean keepsEnd) {
    /** Checks the numbers. */
    public Limits {
        if (maxLength < 1 || stride < 0) {
            throw new IllegalArgumentException(
                    "maxLength " + maxLength + " must be at least 1 and stride " + stride + " at least 0.");
        }
    }

    /** Makes limits for windows. */
    public Limits(int maxLength, int stride) {
        this(maxLength, stride, false);
    }

    /** Makes limits without windows, which cut off the end of a text: {@code truncation_side} is {@code right}. */
    public static Limits of(int maxLength) {
        return new Limits(maxLength, 0, false);
    }

    /** Makes limits without windows, which cut off the beginning of a text: {@code truncation_side} is {@code left}. */
    public static Limits keepingEnd(int maxLength) {
        return new Limits(maxLength, 0, true);
    }
}
