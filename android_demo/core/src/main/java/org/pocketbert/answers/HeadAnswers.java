package org.pocketbert.answers;

import java.util.Map;

/**
 * Holds the answers of several heads to one text, computed in one pass.
 *
 * @param answers the answer of each head by its name, in order of the file's outputs
 */
public record HeadAnswers(Map<String, Answer> answers) implements Answer {
    @Override
    public boolean truncated() {
        return answers.values().stream().anyMatch(Answer::truncated);
    }
}
