package org.pocketbert.answers.heads;

import java.util.ArrayList;
import java.util.List;
import org.pocketbert.answers.Answer;
import org.pocketbert.answers.CodePoints;
import org.pocketbert.answers.FoundSpan;
import org.pocketbert.answers.Matrix;
import org.pocketbert.answers.Scores;
import org.pocketbert.answers.Spans;
import org.pocketbert.text.Input;
import org.pocketbert.tokenizers.Encoding;

/** Answers token-classification: the first token of each word decides its tag, and tags spell pieces of the text. */
final class TokenClassificationHead implements Head {
    private final List<String> tags;
    private final boolean splitsPunctuation;

    TokenClassificationHead(List<String> tags, boolean splitsPunctuation) {
        this.tags = tags;
        this.splitsPunctuation = splitsPunctuation;
    }

    @Override
    public Answer answer(Input input, List<Encoding> rows, List<Matrix> outputs, boolean scored) {
        Encoding encoding = rows.get(0);
        Matrix matrix = outputs.get(0);
        List<Word> words = Word.of(input.first(), encoding, splitsPunctuation);
        List<Integer> chosen = new ArrayList<>();
        double[] sure = new double[words.size()];
        for (int i = 0; i < sure.length; i++) {
            double[] scores = Scores.softmax(matrix.row(words.get(i).token()));
            int best = Scores.largest(scores);
            chosen.add(best);
            sure[i] = scores[best];
        }
        return new Spans(spans(input.first(), words, chosen, sure), encoding.truncated());
    }

    private List<FoundSpan> spans(String text, List<Word> words, List<Integer> chosen, double[] sure) {
        List<FoundSpan> out = new ArrayList<>();
        for (Tag.Run run : Tag.runs(tags, chosen, words)) {
            double sum = 0;
            int count = 0;
            for (int i = 0; i < sure.length; i++) {
                int start = words.get(i).start();
                if (run.start() <= start && start < run.end() && run.label().equals(Tag.label(tags.get(chosen.get(i))))) {
                    sum += sure[i];
                    count++;
                }
            }
            String piece = CodePoints.piece(text, run.start(), run.end());
            out.add(new FoundSpan(run.start(), run.end(), run.label(), piece, sum / count));
        }
        return List.copyOf(out);
    }
}
