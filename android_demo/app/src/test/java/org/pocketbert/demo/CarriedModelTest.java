package org.pocketbert.demo;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import android.content.Intent;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.pocketbert.answers.Prediction;
import org.pocketbert.answers.Predictor;
import org.pocketbert.answers.Scores;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.FolderAssets;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.artefacts.Task;
import org.pocketbert.demo.model.AppFolder;
import org.pocketbert.demo.model.Candidate;
import org.pocketbert.engines.Session;
import org.pocketbert.engines.SessionOptions;
import org.pocketbert.selftest.SelfTest;
import org.pocketbert.selftest.SelfTestException;
import org.pocketbert.testing.Fixtures;
import org.pocketbert.testing.Shim;
import org.pocketbert.text.Input;
import org.pocketbert.text.TextEncoder;
import org.pocketbert.text.TokenizerEncoder;
import org.robolectric.Robolectric;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.android.controller.ActivityController;

/** Opens whatever model the app carries: a tiny one, or the folder that make test-android ARTEFACTS=FOLDER names. */
@RunWith(RobolectricTestRunner.class)
public class CarriedModelTest {
    static {
        Shim.loadIfThere(); // Before TFLite's class is loaded, which tries only once.
    }

    private static final int TYPED = 6;
    private static final double FP32_PROBABILITY = 1e-5;
    private static final double FP32_OUTPUT = 1e-4;

    /** The folder that the carried files were packed from; it has files in fp32 too. */
    private static final Path WHOLE = Path.of(System.getProperty("pocketbert.artefacts", ""));

    private static List<JsonObject> golden() throws IOException {
        return Fixtures.lines(WHOLE.resolve("golden.jsonl"));
    }

    private static JsonArray recorded(JsonObject row, String path) {
        return row.getAsJsonObject("outputs").getAsJsonArray(path);
    }

    private static double[] probabilities(JsonObject row, ModelFile file) {
        return Scores.softmax(Fixtures.floats(recorded(row, file.path())), file.temperature());
    }

    @Test
    public void typedSentencesAreAnsweredAsPythonRecorded() throws Exception {
        try (Screen screen = new Screen().open()) {
            assertEquals("", screen.message());
            AppFolder folder = AppFolder.of(RuntimeEnvironment.getApplication());
            Artefacts artefacts = Artefacts.read(folder);
            ModelFile file = Candidate.of(artefacts).get(0).file();
            for (JsonObject row : golden().subList(0, TYPED)) {
                if (!row.get("text").isJsonPrimitive()) {
                    continue;
                }
                screen.result().removeAllViews();
                screen.type(row.get("text").getAsString());
                assertTrue(screen.message(), screen.result().getChildCount() > 0);
                if (artefacts.task() == Task.TEXT_CLASSIFICATION) {
                    String best = artefacts.labels().get(Scores.largest(probabilities(row, file)));
                    String shown = Screens.texts(screen.result());
                    String chosen = "(?s).*\\[\\Q" + best + "\\E: [^\\]]*, chosen\\].*";
                    assertTrue(row.get("text") + " is " + best + ": " + shown, shown.matches(chosen));
                }
            }
        }
    }

    @Test
    public void everyFileAnswersAsPythonRecorded() throws Exception {
        Artefacts artefacts = Artefacts.read(new FolderAssets(WHOLE.toFile()));
        TextEncoder encoder = TokenizerEncoder.read(artefacts);
        List<String> right = new ArrayList<>();
        for (Candidate candidate : Candidate.of(artefacts)) {
            String path = candidate.file().path();
            try (Session session = candidate.engine().open(Fixtures.source(WHOLE.resolve(path)), SessionOptions.cpu(2))) {
                Predictor predictor = new Predictor(artefacts, encoder, candidate.file(), session);
                SelfTest.Report report = new SelfTest(artefacts, candidate.file()).checkAll(predictor, session.facts().engine());
                right.add(path);
                if (candidate.file().scheme().equals("fp32")) {
                    assertTrue(path + " differs by " + report.largest(), report.largest() < FP32_OUTPUT);
                    comparePredictions(artefacts, predictor, candidate.file());
                }
            } catch (SelfTestException e) {
                // TFLite up to 2.16 computes the default int8 file wrongly; the file made for it has a runtime
                assertEquals(e.getMessage(), "tflite", candidate.file().format());
                assertFalse(e.getMessage(), candidate.file().scheme().equals("fp32"));
                assertTrue(e.getMessage(), candidate.file().runtime().isEmpty());
            }
        }
        assertTrue(right.toString(), right.contains("onnx/model.onnx") && right.contains("onnx/model_int8.onnx"));
    }

    private static void comparePredictions(Artefacts artefacts, Predictor predictor, ModelFile file) throws Exception {
        String path = file.path();
        int compared = 0;
        for (JsonObject row : golden()) {
            boolean single = row.get("text").isJsonPrimitive() && !row.get("text").getAsString().isBlank();
            if (artefacts.task() == Task.TEXT_CLASSIFICATION && single && recorded(row, path) != null) {
                Prediction prediction = (Prediction) predictor.predict(Input.of(row.get("text").getAsString()));
                double[] wanted = probabilities(row, file);
                for (int i = 0; i < wanted.length; i++) {
                    assertEquals(path, wanted[i], prediction.scores()[i], FP32_PROBABILITY);
                }
                compared++;
            }
        }
        assertTrue(path + ": " + compared + " rows", artefacts.task() != Task.TEXT_CLASSIFICATION || compared >= 40);
    }

    @Test
    public void itsBenchmarkIsWritten() throws Exception {
        String path = Candidate.of(Artefacts.read(AppFolder.of(RuntimeEnvironment.getApplication()))).get(0).file().path();
        ActivityController<BenchmarkActivity> controller = Robolectric.buildActivity(
                        BenchmarkActivity.class, new Intent().putExtra("model", path).putExtra("runs", 10).putExtra("seconds", 1))
                .setup();
        Screens.until("finished", () -> controller.get().isFinishing());
        Path written = RuntimeEnvironment.getApplication().getExternalFilesDir(null).toPath().resolve(BenchmarkActivity.FILE);
        Path records = Path.of(System.getProperty("pocketbert.shim")).resolveSibling("records");
        Files.createDirectories(records); // Python imports it: tests/android/imported_record.py
        Files.writeString(records.resolve("carried.json"), Files.readString(written, StandardCharsets.UTF_8));
        controller.destroy();
    }
}
