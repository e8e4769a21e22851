package org.pocketbert.answers.heads;

import java.util.ArrayList;
import java.util.List;
import org.pocketbert.answers.Answer;
import org.pocketbert.answers.Filled;
import org.pocketbert.answers.Guess;
import org.pocketbert.answers.Matrix;
import org.pocketbert.answers.Scores;
import org.pocketbert.text.Input;
import org.pocketbert.text.TextEncoder;
import org.pocketbert.tokenizers.Encoding;

/** Answers fill-mask with the most probable tokens of each masked place. */
final class FillMaskHead implements Head {
    /** Tokens that an answer holds for each place. */
    static final int GUESSES = 10;

    private final TextEncoder encoder;

    FillMaskHead(TextEncoder encoder) {
        this.encoder = encoder;
    }

    @Override
    public Answer answer(Input input, List<Encoding> rows, List<Matrix> outputs, boolean scored) {
        Encoding encoding = rows.get(0);
        Matrix matrix = outputs.get(0);
        List<List<Guess>> places = new ArrayList<>();
        if (hasMask(encoding)) {
            for (int row = 0; row < matrix.rows(); row++) {
                places.add(guesses(matrix.row(row)));
            }
        }
        return new Filled(List.copyOf(places), encoding.truncated());
    }

    private boolean hasMask(Encoding encoding) {
        for (int id : encoding.ids()) {
            if (id == encoder.maskId()) {
                return true;
            }
        }
        return false;
    }

    private List<Guess> guesses(float[] logits) {
        double[] scores = Scores.softmax(logits);
        int[] order = Scores.ranking(scores);
        List<Guess> out = new ArrayList<>();
        for (int i = 0; i < Math.min(GUESSES, order.length); i++) {
            out.add(new Guess(encoder.token(order[i]), encoder.decode(order[i]), scores[order[i]]));
        }
        return List.copyOf(out);
    }
}
