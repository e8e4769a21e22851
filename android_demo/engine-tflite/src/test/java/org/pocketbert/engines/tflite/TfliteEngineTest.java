package org.pocketbert.engines.tflite;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;
import static org.pocketbert.testing.Fixtures.inputs;
import static org.pocketbert.testing.Fixtures.source;

import com.google.gson.JsonObject;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.Before;
import org.junit.Test;
import org.pocketbert.answers.Predictor;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.FolderAssets;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.engines.EngineException;
import org.pocketbert.engines.EngineException.Reason;
import org.pocketbert.engines.ModelSource;
import org.pocketbert.engines.Processor;
import org.pocketbert.engines.Session;
import org.pocketbert.engines.SessionOptions;
import org.pocketbert.engines.Tensor;
import org.pocketbert.selftest.SelfTest;
import org.pocketbert.testing.Fixtures;
import org.pocketbert.testing.Shim;
import org.pocketbert.text.TokenizerEncoder;

/** Runs the native library of the TFLite 2.16.1 AAR, the same file that goes into the APK for x86-64. */
public class TfliteEngineTest {
    private static final Path PHONE = Fixtures.phone("text-classification");
    private static final int ANY_API_LEVEL = 34;

    private final TfliteEngine engine = new TfliteEngine(0);

    @Before
    public void load() {
        Shim.loadOrSkip();
    }

    private Session open(String path, int threads) throws Exception {
        return engine.open(source(PHONE.resolve(path)), SessionOptions.cpu(threads));
    }

    private static long[] ids(int row) throws Exception {
        return Fixtures.longs(Fixtures.lines(PHONE.resolve("golden_tokens.jsonl")).get(row).getAsJsonArray("ids"));
    }

    /** Runs the golden rows and returns the largest difference from what the toolkit saw, relative to each row's tolerance. */
    private double worst(String path, int threads) throws Exception {
        List<JsonObject> rows = Fixtures.lines(PHONE.resolve("golden.jsonl"));
        double worst = 0;
        try (Session session = open(path, threads)) {
            for (int i = 0; i < 20; i++) {
                float[] expected = Fixtures.floats(rows.get(i).getAsJsonObject("outputs").getAsJsonArray(path));
                double tolerance = rows.get(i).getAsJsonObject("tolerance").get(path).getAsDouble();
                long[] ids = ids(i);
                int length = session.facts().lengths().stream().filter(n -> n >= ids.length).findFirst().orElseThrow();
                float[] seen = session.run(inputs(Arrays.copyOf(ids, length))).get("logits").values();
                for (int j = 0; j < seen.length; j++) {
                    worst = Math.max(worst, Math.abs(seen[j] - expected[j]) / tolerance);
                }
            }
        }
        return worst;
    }

    @Test
    public void theVersionIsTheLibrarys() {
        assertEquals("2.16.1", engine.version());
    }

    @Test
    public void fp32AnswersAreThoseOfPython() throws Exception {
        assertTrue(worst("tflite/model.tflite", 1) < 1);
        assertTrue(worst("tflite/model.tflite", 2) < 1);
    }

    @Test
    public void theInt8FileForThisRuntimeIsRight() throws Exception {
        assertTrue(worst("tflite/model_int8_tflite216.tflite", 1) < 1);
        assertTrue(worst("tflite/model_int8_tflite216.tflite", 2) < 1);
    }

    @Test
    public void theDefaultInt8FileIsWrongWithoutAnError() throws Exception {
        assertTrue(worst("tflite/model_int8.tflite", 1) > 5); // Why an app needs a self-test.
    }

    @Test
    public void severalHeadsAreThoseThatPythonRecorded() throws Exception {
        Path phone = Fixtures.phone("several");
        Artefacts artefacts = Artefacts.read(new FolderAssets(phone.toFile()));
        String path = "tflite/model.tflite";
        ModelFile file = artefacts.models().stream().filter(m -> m.path().equals(path)).findFirst().orElseThrow();
        try (Session session = engine.open(source(phone.resolve(path)), SessionOptions.cpu(1))) {
            Predictor predictor = new Predictor(artefacts, TokenizerEncoder.read(artefacts), file, session);
            SelfTest.Report report = new SelfTest(artefacts, file).checkAll(predictor, engine.name());
            assertTrue(report.toString(), report.rows() >= 30);
        }
    }

    @Test
    public void aBatchRunsRowByRow() throws Exception {
        try (Session session = open("tflite/model.tflite", 1)) {
            long[] first = Arrays.copyOf(ids(0), 16);
            long[] second = Arrays.copyOf(ids(1), 16);
            Tensor both = session.run(inputs(first, second)).get("logits");
            assertArrayEquals(new int[] {2, 3}, both.shape());
            assertArrayEquals(session.run(inputs(second)).get("logits").values(), both.row(1), 0);
        }
    }

    @Test
    public void factsSayWhatTheFileTakes() throws Exception {
        try (Session session = open("tflite/model.tflite", 1)) {
            assertEquals(List.of(16, 48), session.facts().lengths());
            assertEquals(List.of("attention_mask", "input_ids", "token_type_ids"), session.facts().inputs());
            assertEquals("none", session.facts().cache());
            assertTrue(Double.isNaN(session.facts().firstRunMillis()));
            session.run(inputs(new long[16]));
            assertTrue(session.facts().firstRunMillis() > 0);
        }
    }

    @Test
    public void aLengthThatTheFileDoesNotTakeIsRefused() throws Exception {
        try (Session session = open("tflite/model.tflite", 1)) {
            EngineException e = assertThrows(EngineException.class, () -> session.run(inputs(new long[17])));
            assertEquals(Reason.INPUTS, e.reason());
            assertTrue(e.getMessage(), e.getMessage().contains("[16, 48] tokens, not 17"));
            EngineException missing =
                    assertThrows(EngineException.class, () -> session.run(Map.of("input_ids", new long[1][16])));
            assertTrue(missing.getMessage(), missing.getMessage().contains("attention_mask"));
        }
    }

    @Test
    public void damagedFilesAreRefused() throws Exception {
        byte[] whole = Files.readAllBytes(PHONE.resolve("tflite/model.tflite"));
        byte[][] damaged = {new byte[0], "This is no model. ".repeat(40).getBytes(), Arrays.copyOf(whole, whole.length / 2)};
        for (byte[] bytes : damaged) {
            EngineException e = assertThrows(
                    EngineException.class,
                    () -> engine.open(ModelSource.copyOf("broken.tflite", "digest", bytes), SessionOptions.cpu(1)));
            assertEquals(bytes.length + " bytes: " + e.getMessage(), Reason.CORRUPT_FILE, e.reason());
        }
    }

    @Test
    public void anUnknownOperatorIsRefused() throws Exception {
        EngineException e = assertThrows(
                EngineException.class,
                () -> engine.open(source(Fixtures.path("engines/operator.tflite")), SessionOptions.cpu(1)));
        assertEquals(e.getMessage(), Reason.UNSUPPORTED_OPERATOR, e.reason());
    }

    @Test
    public void processorsThatAreMissingAreRefused() {
        assertEquals(List.of(Processor.CPU), engine.processors());
        EngineException e = assertThrows(
                EngineException.class,
                () -> engine.open(source(PHONE.resolve("tflite/model.tflite")), new SessionOptions(Processor.NPU, 1, null)));
        assertEquals(Reason.PROCESSOR, e.reason());
        assertEquals(List.of(Processor.CPU, Processor.NPU), new TfliteEngine(ANY_API_LEVEL).processors());
    }

    @Test
    public void aClosedSessionSaysSo() throws Exception {
        Session session = open("tflite/model.tflite", 1);
        session.close();
        session.close();
        assertThrows(EngineException.class, () -> session.run(inputs(new long[16])));
    }
}
