package org.pocketbert.answers.heads;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.pocketbert.answers.Answer;
import org.pocketbert.answers.Embedding;
import org.pocketbert.answers.HeadAnswers;
import org.pocketbert.answers.Matrix;
import org.pocketbert.answers.Scores;
import org.pocketbert.answers.Value;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.artefacts.NamedHead;
import org.pocketbert.artefacts.Processing;
import org.pocketbert.text.TextEncoder;

/** Chooses what turns a folder's outputs into answers. */
public final class Heads {
    private Heads() {}

    /**
     * Returns what answers for a folder, with one of its model files: the head of its task, or all of several heads, whose answers
     * become {@link HeadAnswers}.
     *
     * @param artefacts the folder
     * @param file the model file, whose temperature and threshold decide how sure a classifier is and has to be
     * @param encoder its tokenizer, which spells the guesses of fill-mask
     */
    public static Head of(Artefacts artefacts, ModelFile file, TextEncoder encoder) {
        List<NamedHead> named = artefacts.heads();
        List<Head> heads = new ArrayList<>();
        for (NamedHead one : named) {
            heads.add(of(one, artefacts.processing(), file, encoder));
        }
        return (input, rows, outputs, scored) -> {
            Map<String, Answer> answers = new LinkedHashMap<>();
            for (int i = 0; i < heads.size(); i++) {
                List<Matrix> own = new ArrayList<>();
                for (Matrix matrix : outputs) {
                    own.add(matrix.columns(named.get(i).start(), named.get(i).width()));
                }
                answers.put(named.get(i).name(), heads.get(i).answer(input, rows, own, scored));
            }
            return named.get(0).name().isEmpty() ? answers.get("") : new HeadAnswers(Collections.unmodifiableMap(answers));
        };
    }

    private static Head of(NamedHead head, Processing processing, ModelFile file, TextEncoder encoder) {
        return switch (head.task()) {
            case TEXT_CLASSIFICATION, MULTI_LABEL -> new ClassificationHead(
                    head.task(),
                    head.labels(),
                    head.thresholds(),
                    file.unknown() > 0 ? file.unknown() : processing.unknown(),
                    file.temperature());
            case TOKEN_CLASSIFICATION -> new TokenClassificationHead(head.labels(), processing.splitsPunctuation());
            case QUESTION_ANSWERING -> new QuestionAnsweringHead(processing.answerLength(), processing.nullAnswers());
            case FILL_MASK -> new FillMaskHead(encoder);
            case REGRESSION -> (input, rows, outputs, scored) -> new Value(
                    Scores.of(outputs.get(0).row(0), scored ? "none" : head.score())[0], rows.get(0).truncated());
            case FEATURE_EXTRACTION -> (input, rows, outputs, scored) -> new Embedding(
                    outputs.get(0).row(0), rows.get(0).truncated());
            case SEVERAL -> throw new IllegalArgumentException("one of several heads has a task of its own");
        };
    }
}
