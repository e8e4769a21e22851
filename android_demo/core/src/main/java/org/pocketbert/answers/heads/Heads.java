package org.pocketbert.answers.heads;

import org.pocketbert.answers.Embedding;
import org.pocketbert.answers.Scores;
import org.pocketbert.answers.Value;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.artefacts.Processing;
import org.pocketbert.text.TextEncoder;

/** Chooses the head of a folder's task. */
public final class Heads {
    private Heads() {}

    /**
     * Returns the head of a folder's task, for one of its model files.
     *
     * @param artefacts the folder
     * @param file the model file, whose temperature and threshold decide how sure a classifier is and has to be
     * @param encoder its tokenizer, which spells the guesses of fill-mask
     */
    public static Head of(Artefacts artefacts, ModelFile file, TextEncoder encoder) {
        Processing processing = artefacts.processing();
        return switch (artefacts.task()) {
            case TEXT_CLASSIFICATION, MULTI_LABEL -> new ClassificationHead(
                    artefacts.task(),
                    artefacts.labels(),
                    processing.thresholds(),
                    file.unknown() > 0 ? file.unknown() : processing.unknown(),
                    file.temperature());
            case TOKEN_CLASSIFICATION -> new TokenClassificationHead(artefacts.labels());
            case QUESTION_ANSWERING -> new QuestionAnsweringHead(processing.answerLength(), processing.nullAnswers());
            case FILL_MASK -> new FillMaskHead(encoder);
            case REGRESSION -> (input, rows, outputs, scored) -> new Value(
                    Scores.of(outputs.get(0).row(0), scored ? "none" : processing.score())[0], rows.get(0).truncated());
            case FEATURE_EXTRACTION -> (input, rows, outputs, scored) -> new Embedding(
                    outputs.get(0).row(0), rows.get(0).truncated());
        };
    }
}
