package org.pocketbert.demo;

import java.util.List;

/** What a model's answer looks like on the screen, whatever the task. */
public sealed interface Result {
    /**
     * Rows with a name and a bar.
     *
     * @param title says what the bars are; may be empty
     * @param bars the rows, best first
     */
    record Bars(String title, List<Bar> bars) implements Result {}

    /**
     * One row.
     *
     * @param name label, word or sentence
     * @param value length of the bar, from 0 to 1
     * @param figure the number as text
     * @param chosen whether the model decided for it
     */
    record Bar(String name, double value, String figure, boolean chosen) {}

    /**
     * A text with coloured pieces.
     *
     * @param title the answer in one sentence; may be empty
     * @param text what was typed
     * @param marks the pieces, in order
     */
    record Marked(String title, String text, List<Mark> marks) implements Result {}

    /**
     * One coloured piece.
     *
     * @param start its first character, in UTF-16 units
     * @param end the character after its last
     * @param name what it is; may be empty
     * @param figure its score as text; may be empty
     */
    record Mark(int start, int end, String name, String figure) {}

    /** One sentence, such as a predicted number. */
    record Words(String text) implements Result {}

    /**
     * A result under a heading.
     *
     * @param name name of the head that answered
     * @param result its answer
     */
    record Named(String name, Result result) implements Result {}

    /** Several results, one below the other. */
    record Several(List<Result> results) implements Result {}
}
