package org.pocketbert.text;

/** Says why a text cannot be given to a model, in words for the screen. */
public final class TextException extends Exception {
    private static final long serialVersionUID = 1;

    /** Names the cause, for apps that word it in another language. */
    public enum Reason {
        /** There is no character but blanks. */
        EMPTY,
        /** There are more characters than are read. */
        TOO_LONG,
        /** The text holds half of a surrogate pair, which is no character. */
        NOT_UNICODE,
        /** The model takes one text where two were given, or two where one was given. */
        NUMBER_OF_TEXTS,
        /** A file takes fewer tokens than a text has. */
        LENGTH,
        /** The question leaves no room for the context. */
        NO_ROOM
    }

    private final Reason reason;

    /** Creates an exception with a message that says what is wrong, what is allowed and what to do. */
    public TextException(Reason reason, String message) {
        super(message);
        this.reason = reason;
    }

    /** Returns the cause. */
    public Reason reason() {
        return reason;
    }
}
