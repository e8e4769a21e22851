package org.pocketbert.answers.heads;

import java.util.List;
import org.pocketbert.answers.Answer;
import org.pocketbert.answers.CodePoints;
import org.pocketbert.answers.Excerpt;
import org.pocketbert.answers.Matrix;
import org.pocketbert.answers.Scores;
import org.pocketbert.text.Input;
import org.pocketbert.tokenizers.Encoding;

/** Answers question-answering: the best start and end in the context, over all windows of it. */
final class QuestionAnsweringHead implements Head {
    private static final int CONTEXT = 1;
    private final int answerLength;
    private final boolean nullAnswers;

    /**
     * Creates a head.
     *
     * @param answerLength longest answer in tokens
     * @param nullAnswers whether a question may have no answer
     */
    QuestionAnsweringHead(int answerLength, boolean nullAnswers) {
        this.answerLength = answerLength;
        this.nullAnswers = nullAnswers;
    }

    /** Holds the best answer of one window: 32-bit scores, as the Python side compares them. */
    private record Best(float score, int start, int end, float probability, float none) {}

    @Override
    public Answer answer(Input input, List<Encoding> rows, List<Matrix> outputs, boolean scored) {
        Best best = null;
        float none = Float.POSITIVE_INFINITY;
        for (int i = 0; i < rows.size(); i++) {
            Best found = best(rows.get(i), outputs.get(i));
            best = best == null || found.score() > best.score() ? found : best;
            none = Math.min(none, found.none());
        }
        if (best == null || (nullAnswers && none > best.score())) { // no answer in any window
            return new Excerpt("", 0, 0, best == null ? 0 : best.probability());
        }
        int start = CodePoints.afterBlanks(input.second(), best.start(), best.end());
        String text = CodePoints.piece(input.second(), start, best.end());
        return new Excerpt(text, start, best.end(), best.probability());
    }

    private Best best(Encoding window, Matrix matrix) {
        float none = (float) ((double) matrix.at(0, 0) + matrix.at(0, 1));
        double[] starts = matrix.column(0);
        double[] ends = matrix.column(1);
        int first = -1;
        int last = -1;
        double score = Double.NEGATIVE_INFINITY;
        int[] tokens = context(window);
        for (int i = 0; i < tokens.length; i++) {
            for (int j = i; j < tokens.length && j - i < answerLength; j++) {
                double sum = starts[tokens[i]] + ends[tokens[j]];
                if (sum > score) {
                    score = sum;
                    first = tokens[i];
                    last = tokens[j];
                }
            }
        }
        if (first < 0) {
            return new Best(-Float.MAX_VALUE, 0, 0, 0, none);
        }
        double probability = share(starts, starts[first]) * share(ends, ends[last]);
        return new Best((float) score, window.starts()[first], window.ends()[last], (float) probability, none);
    }

    private static int[] context(Encoding window) {
        int[] out = new int[window.length()];
        int count = 0;
        for (int i = 0; i < out.length; i++) {
            if (window.parts()[i] == CONTEXT) {
                out[count++] = i;
            }
        }
        return java.util.Arrays.copyOf(out, count);
    }

    private static double share(double[] logits, double value) {
        double largest = logits[Scores.largest(logits)];
        double sum = 0;
        for (double logit : logits) {
            sum += Math.exp(logit - largest);
        }
        return Math.exp(value - largest) / sum;
    }
}
