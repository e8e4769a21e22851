package org.pocketbert.answers.heads;

import java.util.List;
import org.pocketbert.answers.Answer;
import org.pocketbert.answers.AnswerException;
import org.pocketbert.answers.Matrix;
import org.pocketbert.text.Input;
import org.pocketbert.tokenizers.Encoding;

/** Turns the outputs of a task into an answer. Implementations are immutable. */
public interface Head {
    /**
     * Answers one input.
     *
     * @param input what was asked
     * @param rows what the model read: one row, or the windows of a long context
     * @param outputs outputs of each row, without padding
     * @param scored whether the file computes the score function itself, so that outputs are probabilities
     * @throws AnswerException if the outputs are not those of such a model
     */
    Answer answer(Input input, List<Encoding> rows, List<Matrix> outputs, boolean scored) throws AnswerException;
}
