package org.pocketbert.tokenizers;

/**
 * How long an input may become.
 *
 * @param maxLength Most tokens of an input, special tokens included; at least 1.
 * @param stride Tokens that two neighbouring windows of a long text share; 0 where there are no windows.
 */
public record Limits(int maxLength, int stride) {
    /** Checks the numbers. */
    public Limits {
        if (maxLength < 1 || stride < 0) {
            throw new IllegalArgumentException(
                    "maxLength " + maxLength + " must be at least 1 and stride " + stride + " at least 0.");
        }
    }

    /** Makes limits without windows. */
    public static Limits of(int maxLength) {
        return new Limits(maxLength, 0);
    }
}
