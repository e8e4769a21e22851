package org.pocketbert.selftest;

/** Says that an engine or a tokenizer does not compute what was proven, in words for the screen. */
public final class SelfTestException extends Exception {
    private static final long serialVersionUID = 1;

    /** Names what is wrong, for apps that word it in another language. */
    public enum Reason {
        /** The tokenizer gives other tokens than the recorded ones. */
        TOKENIZER,
        /** The engine gives other outputs than the recorded ones. */
        ENGINE,
        /** There are too few recorded rows to prove anything. */
        TOO_FEW_ROWS
    }

    private final Reason reason;

    /** Creates an exception with a message that says what is wrong, what is allowed and what to do. */
    public SelfTestException(Reason reason, String message) {
        super(message);
        this.reason = reason;
    }

    /** Returns what is wrong. */
    public Reason reason() {
        return reason;
    }
}
