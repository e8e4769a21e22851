package org.pocketbert.engines.ort;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;
import static org.pocketbert.testing.Fixtures.inputs;
import static org.pocketbert.testing.Fixtures.source;

import com.google.gson.JsonObject;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;
import org.pocketbert.engines.EngineException;
import org.pocketbert.engines.EngineException.Reason;
import org.pocketbert.engines.Processor;
import org.pocketbert.engines.Session;
import org.pocketbert.engines.SessionOptions;
import org.pocketbert.engines.Tensor;
import org.pocketbert.testing.Fixtures;

/** Runs the files that the Python scripts wrote, sound and broken ones. */
public class OrtEngineTest {
    private static final Path FIXTURES = Fixtures.path("");
    private static final Path PHONE = Fixtures.phone("text-classification");

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private final OrtEngine engine = new OrtEngine();

    private Session open(String path) throws Exception {
        return engine.open(source(PHONE.resolve(path)), SessionOptions.cpu(1));
    }

    /** Ids of the first golden row: the toolkit wrote them. */
    private static long[] goldenIds() throws Exception {
        return Fixtures.longs(Fixtures.lines(PHONE.resolve("golden_tokens.jsonl")).get(0).getAsJsonArray("ids"));
    }

    private static JsonObject golden() throws Exception {
        return Fixtures.lines(PHONE.resolve("golden.jsonl")).get(0);
    }

    private static float[] expected(String path) throws Exception {
        return Fixtures.floats(golden().getAsJsonObject("outputs").getAsJsonArray(path));
    }

    @Test
    public void goldenRowsHaveOneText() throws Exception {
        assertEquals(golden().get("text"), Fixtures.lines(PHONE.resolve("golden_tokens.jsonl")).get(0).get("text"));
    }

    @Test
    public void fp32AnswersAreThoseOfPython() throws Exception {
        try (Session session = open("onnx/model.onnx")) {
            Tensor logits = session.run(inputs(goldenIds())).get("logits");
            assertArrayEquals(new int[] {1, 3}, logits.shape());
            assertArrayEquals(expected("onnx/model.onnx"), logits.values(), 1e-5f);
        }
    }

    @Test
    public void int8AnswersAreWithinTheGoldenTolerance() throws Exception {
        float tolerance = golden().getAsJsonObject("tolerance").get("onnx/model_int8.onnx").getAsFloat();
        try (Session session = open("onnx/model_int8.onnx")) {
            assertArrayEquals(
                    expected("onnx/model_int8.onnx"), session.run(inputs(goldenIds())).get("logits").values(), tolerance);
        }
    }

    @Test
    public void aPaddedBatchKeepsItsRows() throws Exception {
        long[] ids = goldenIds();
        long[] padded = java.util.Arrays.copyOf(ids, ids.length + 5);
        long[] shorter = new long[padded.length];
        System.arraycopy(ids, 0, shorter, 0, 3);
        try (Session session = open("onnx/model.onnx")) {
            Tensor both = session.run(inputs(shorter, padded)).get("logits");
            assertArrayEquals(new int[] {2, 3}, both.shape());
            assertArrayEquals(expected("onnx/model.onnx"), both.row(1), 1e-4f);
        }
    }

    @Test
    public void loadAndFirstRunAreTimedApart() throws Exception {
        try (Session session = open("onnx/model.onnx")) {
            assertTrue(session.facts().loadMillis() > 0);
            assertTrue(Double.isNaN(session.facts().firstRunMillis()));
            session.run(inputs(goldenIds()));
            double first = session.facts().firstRunMillis();
            assertTrue(first > 0);
            session.run(inputs(goldenIds()));
            assertEquals(first, session.facts().firstRunMillis(), 0);
            assertTrue(session.facts().memoryBytes() >= 0);
            assertEquals(List.of("input_ids", "attention_mask", "token_type_ids"), session.facts().inputs());
            assertTrue(session.facts().engine(), session.facts().engine().startsWith("ONNX Runtime 1."));
        }
    }

    @Test
    public void theOptimisedGraphIsWrittenOnceAndReadLater() throws Exception {
        File cache = folder.newFolder();
        SessionOptions options = new SessionOptions(Processor.CPU, 2, cache);
        float[] first;
        try (Session session = engine.open(source(PHONE.resolve("onnx/model_int8.onnx")), options)) {
            assertEquals("written", session.facts().cache());
            first = session.run(inputs(goldenIds())).get("logits").values();
        }
        assertEquals(1, cache.list().length);
        try (Session session = engine.open(source(PHONE.resolve("onnx/model_int8.onnx")), options)) {
            assertEquals("read", session.facts().cache());
            assertArrayEquals(first, session.run(inputs(goldenIds())).get("logits").values(), 1e-6f);
        }
    }

    @Test
    public void aDamagedCacheIsWrittenAnew() throws Exception {
        File cache = folder.newFolder();
        SessionOptions options = new SessionOptions(Processor.CPU, 1, cache);
        engine.open(source(PHONE.resolve("onnx/model.onnx")), options).close();
        Files.write(cache.listFiles()[0].toPath(), new byte[100]);
        try (Session session = engine.open(source(PHONE.resolve("onnx/model.onnx")), options)) {
            assertEquals("written", session.facts().cache());
            assertArrayEquals(
                    expected("onnx/model.onnx"), session.run(inputs(goldenIds())).get("logits").values(), 1e-5f);
        }
    }

    @Test
    public void aFileInWhichProductsShareAWeightIsOpened() throws Exception {
        long[] ids = new long[64];
        for (int i = 0; i < ids.length; i += 2) {
            ids[i] = 1; // No neighbours: their products would saturate on x86 without VNNI.
        }
        try (Session session = engine.open(source(FIXTURES.resolve("engines/shared.onnx")), SessionOptions.cpu(1))) {
            float[] sums = session.run(Map.of("input_ids", new long[][] {ids})).get("logits").values();
            assertEquals(32 * 32, sums[0], 1);
            assertEquals(0, sums[1], 0);
        }
    }

    @Test
    public void brokenFilesAreRefusedWithTheirReason() throws Exception {
        Map<String, Reason> reasons = Map.of(
                "truncated.onnx", Reason.CORRUPT_FILE,
                "text.onnx", Reason.CORRUPT_FILE,
                "empty.onnx", Reason.CORRUPT_FILE,
                "operator.onnx", Reason.UNSUPPORTED_OPERATOR,
                "newer.onnx", Reason.UNSUPPORTED_OPERATOR);
        for (Map.Entry<String, Reason> entry : reasons.entrySet()) {
            EngineException e = assertThrows(
                    entry.getKey(),
                    EngineException.class,
                    () -> engine.open(source(FIXTURES.resolve("engines/" + entry.getKey())), SessionOptions.cpu(1)));
            assertEquals(entry.getKey() + ": " + e.getMessage(), entry.getValue(), e.reason());
            assertTrue(e.getMessage(), e.getMessage().contains(entry.getKey()));
        }
    }

    @Test
    public void aRunThatNeedsTooMuchMemoryIsRefused() throws Exception {
        try (Session session = engine.open(source(FIXTURES.resolve("engines/memory.onnx")), SessionOptions.cpu(1))) {
            EngineException e = assertThrows(EngineException.class, () -> session.run(inputs(new long[] {1, 2, 3})));
            assertEquals(e.getMessage(), Reason.OUT_OF_MEMORY, e.reason());
        }
    }

    @Test
    public void wrongInputsAreRefused() throws Exception {
        try (Session session = open("onnx/model.onnx")) {
            EngineException missing =
                    assertThrows(EngineException.class, () -> session.run(Map.of("input_ids", new long[][] {{1}})));
            assertEquals(Reason.INPUTS, missing.reason());
            assertTrue(missing.getMessage(), missing.getMessage().contains("attention_mask"));
            EngineException ragged =
                    assertThrows(EngineException.class, () -> session.run(inputs(new long[] {1, 2}, new long[] {1})));
            assertEquals(Reason.INPUTS, ragged.reason());
        }
    }

    @Test
    public void aProcessorThatIsMissingIsRefused() {
        assertFalse(engine.processors().contains(Processor.NPU)); // The desktop library has no NNAPI.
        EngineException e = assertThrows(
                EngineException.class,
                () -> engine.open(source(PHONE.resolve("onnx/model.onnx")), new SessionOptions(Processor.NPU, 1, null)));
        assertEquals(Reason.PROCESSOR, e.reason());
    }

    @Test
    public void aClosedSessionSaysSo() throws Exception {
        Session session = open("onnx/model.onnx");
        session.close();
        session.close();
        assertThrows(EngineException.class, () -> session.run(inputs(goldenIds())));
    }
}
