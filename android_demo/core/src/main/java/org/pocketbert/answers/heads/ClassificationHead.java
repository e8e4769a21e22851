package org.pocketbert.answers.heads;

import java.util.List;
import org.pocketbert.answers.Answer;
import org.pocketbert.answers.Labelling;
import org.pocketbert.answers.Matrix;
import org.pocketbert.answers.Prediction;
import org.pocketbert.answers.Scores;
import org.pocketbert.artefacts.Task;
import org.pocketbert.text.Input;
import org.pocketbert.tokenizers.Encoding;

/** Answers text-classification with the most probable label, and multi-label with those that reach their thresholds. */
final class ClassificationHead implements Head {
    private final Task task;
    private final List<String> labels;
    private final double[] thresholds;
    private final double unknown;
    private final double temperature;

    ClassificationHead(Task task, List<String> labels, double[] thresholds, double unknown, double temperature) {
        this.task = task;
        this.labels = labels;
        this.thresholds = thresholds;
        this.unknown = unknown;
        this.temperature = temperature;
    }

    @Override
    public Answer answer(Input input, List<Encoding> rows, List<Matrix> outputs, boolean scored) {
        float[] row = outputs.get(0).row(0);
        boolean truncated = rows.get(0).truncated();
        if (task == Task.TEXT_CLASSIFICATION) {
            double[] scores = scored ? Scores.raised(row, temperature) : Scores.softmax(row, temperature);
            int best = Scores.largest(scores);
            return new Prediction(labels.get(best), scores[best], labels, scores, truncated, scores[best] < unknown);
        }
        double[] scores = Scores.of(row, scored ? "none" : task.score());
        List<String> given = new java.util.ArrayList<>();
        for (int label : Scores.ranking(scores)) {
            if (scores[label] >= thresholds[label]) {
                given.add(labels.get(label));
            }
        }
        return new Labelling(List.copyOf(given), labels, scores, truncated);
    }
}
