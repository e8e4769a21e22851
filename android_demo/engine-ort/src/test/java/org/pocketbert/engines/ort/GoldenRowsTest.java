package org.pocketbert.engines.ort;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.file.Path;
import java.util.List;
import org.junit.Test;
import org.pocketbert.answers.Answer;
import org.pocketbert.answers.Embedding;
import org.pocketbert.answers.Excerpt;
import org.pocketbert.answers.FoundSpan;
import org.pocketbert.answers.HeadAnswers;
import org.pocketbert.answers.Prediction;
import org.pocketbert.answers.Predictor;
import org.pocketbert.answers.Spans;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.FolderAssets;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.artefacts.Task;
import org.pocketbert.engines.Session;
import org.pocketbert.engines.SessionOptions;
import org.pocketbert.selftest.SelfTest;
import org.pocketbert.testing.Fixtures;
import org.pocketbert.text.Input;
import org.pocketbert.text.TextEncoder;
import org.pocketbert.text.TokenizerEncoder;

/** Compares text, tokens, engine and answer together with what Python gave, for every task. */
public class GoldenRowsTest {
    private static final double FP32 = 1e-5;
    /** Of numbers before softmax, which are as large as 30: this engine is of another version than the one that recorded them. */
    private static final double RAW = 1e-4;
    /** Texts that are compared at least for classification. */
    private static final int SENTENCES = 50;

    /** Uses an open file. */
    private interface Use {
        void with(Predictor predictor, SelfTest test) throws Exception;
    }

    private static void open(Path phone, String path, Use use) throws Exception {
        Artefacts artefacts = Artefacts.read(new FolderAssets(phone.toFile()));
        TextEncoder encoder = TokenizerEncoder.read(artefacts);
        ModelFile file = artefacts.models().stream().filter(m -> m.path().equals(path)).findFirst().orElseThrow();
        try (Session session = new OrtEngine().open(Fixtures.source(phone.resolve(path)), SessionOptions.cpu(1))) {
            use.with(new Predictor(artefacts, encoder, file, session), new SelfTest(artefacts, file));
        }
    }

    @Test
    public void allGoldenRowsOfAllTasksAreRight() throws Exception {
        for (Task task : Task.values()) {
            for (String path : List.of("onnx/model.onnx", "onnx/model_int8.onnx")) {
                open(Fixtures.phone(task.hubName()), path, (predictor, test) -> {
                    SelfTest.Report report = test.checkAll(predictor, "ONNX Runtime");
                    int least = task == Task.TEXT_CLASSIFICATION ? SENTENCES : 30;
                    assertTrue(task + " " + report.rows(), report.rows() >= least);
                    if (path.equals("onnx/model.onnx")) {
                        assertTrue(task + ": fp32 differs by " + report.largest(), report.largest() < RAW);
                    }
                });
            }
        }
    }

    @Test
    public void answersAreThoseOfPython() throws Exception {
        for (Task task : List.of(
                Task.TEXT_CLASSIFICATION,
                Task.TOKEN_CLASSIFICATION,
                Task.QUESTION_ANSWERING,
                Task.FEATURE_EXTRACTION,
                Task.SEVERAL)) {
            List<JsonObject> rows = Fixtures.lines(Fixtures.path("phones/" + task.hubName() + ".answers.jsonl"));
            assertTrue(task + " " + rows.size(), task != Task.TEXT_CLASSIFICATION || rows.size() >= SENTENCES);
            open(Fixtures.phone(task.hubName()), "onnx/model.onnx", (predictor, test) -> {
                for (JsonObject row : rows) {
                    if (row.get("text").isJsonPrimitive() && row.get("text").getAsString().isBlank()) {
                        continue; // The app refuses empty texts.
                    }
                    check(predictor.predict(input(row.get("text"))), row.get("answer"));
                }
            });
        }
    }

    private static Input input(JsonElement text) {
        JsonArray pair = text.isJsonArray() ? text.getAsJsonArray() : null;
        return pair == null ? Input.of(text.getAsString()) : new Input(pair.get(0).getAsString(), pair.get(1).getAsString());
    }

    private static void check(Answer answer, JsonElement expected) {
        if (answer instanceof HeadAnswers heads) {
            assertEquals(expected.getAsJsonObject().keySet(), heads.answers().keySet());
            heads.answers().forEach((name, own) -> check(own, expected.getAsJsonObject().get(name)));
        } else if (answer instanceof Prediction prediction) {
            for (int i = 0; i < prediction.scores().length; i++) {
                double wanted = expected.getAsJsonObject().get(prediction.labels().get(i)).getAsDouble();
                assertEquals(wanted, prediction.scores()[i], FP32);
            }
        } else if (answer instanceof Spans spans) {
            JsonArray wanted = expected.getAsJsonArray();
            assertEquals(wanted.size(), spans.spans().size());
            for (int i = 0; i < wanted.size(); i++) {
                FoundSpan span = spans.spans().get(i);
                assertEquals(
                        wanted.get(i).toString(), "[" + span.start() + "," + span.end() + ",\"" + span.label() + "\"]");
            }
        } else if (answer instanceof Excerpt excerpt) {
            assertEquals(expected.getAsString(), excerpt.text());
        } else if (answer instanceof Embedding embedding) {
            assertArrayEquals(Fixtures.floats(expected.getAsJsonArray()), embedding.vector(), (float) FP32);
        }
    }
}
