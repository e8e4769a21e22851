package org.pocketbert.answers;

/** Says why outputs of a model are no answer, in words for the screen. */
public final class AnswerException extends Exception {
    private static final long serialVersionUID = 1;

    /** Creates an exception with a message that says what is wrong, what is allowed and what to do. */
    public AnswerException(String message) {
        super(message);
    }
}
