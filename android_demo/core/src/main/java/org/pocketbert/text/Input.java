package org.pocketbert.text;

import org.pocketbert.artefacts.Task;
import org.pocketbert.text.TextException.Reason;

/**
 * Holds what a model is asked: one text, or two.
 *
 * @param first the text, or the question
 * @param second the second text or the context; null for a single text
 */
public record Input(String first, String second) {
    /** Most characters of a text: more would hold up the screen for seconds, and only long contexts are read beyond 512 tokens. */
    public static final int MAX_CHARACTERS = 50_000;

    /** Creates an input of one text. */
    public static Input of(String text) {
        return new Input(text, null);
    }

    /** Returns this input with a prompt in front of its first text. */
    public Input behind(String prompt) {
        return prompt.isEmpty() ? this : new Input(prompt + first, second);
    }

    /**
     * Refuses what a task cannot take.
     *
     * @throws TextException if a text is empty, too long or not Unicode, or there are too few or too many texts
     */
    public void check(Task task) throws TextException {
        if (task.pairsOnly() && second == null) {
            throw new TextException(Reason.NUMBER_OF_TEXTS, "This model takes a question and a text. Give both.");
        }
        if (task.singlesOnly() && second != null) {
            throw new TextException(Reason.NUMBER_OF_TEXTS, "This model takes one text, not two. Give each by itself.");
        }
        check(first);
        if (second != null) {
            check(second);
        }
    }

    private static void check(String text) throws TextException {
        if (text == null || text.isBlank()) {
            throw new TextException(Reason.EMPTY, "The text is empty. Write at least one word.");
        }
        int characters = text.codePointCount(0, text.length());
        if (characters > MAX_CHARACTERS) {
            throw new TextException(
                    Reason.TOO_LONG,
                    String.format(
                            "The text has %,d characters; at most %,d are read. Shorten it.", characters, MAX_CHARACTERS));
        }
        for (int i = 0; i < text.length(); i = text.offsetByCodePoints(i, 1)) {
            if (Character.isSurrogate(text.charAt(i)) && text.codePointAt(i) < Character.MIN_SUPPLEMENTARY_CODE_POINT) {
                throw new TextException(
                        Reason.NOT_UNICODE, "The text holds half of a character at place " + i + ". Remove it.");
            }
        }
    }
}
