package org.pocketbert.statistics;

import static org.junit.Assert.assertEquals;

import java.io.InputStream;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.Test;
import org.pocketbert.artefacts.FileEntry;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.engines.Processor;
import org.pocketbert.engines.SessionFacts;
import org.pocketbert.selftest.SelfTest;

public class BenchmarkRecordTest {
    private static FileMeasurement measured(String path, double loadMillis, long memory, List<Sustained.Point> sustained) {
        ModelFile file = new ModelFile(
                new FileEntry(path, "ab".repeat(32), 1000, "model"), "onnx", "int8", true, "", "", List.of(), List.of(), 1,
                0, List.of());
        SessionFacts facts = new SessionFacts(
                "ONNX Runtime 1.26.0", Processor.CPU, 2, loadMillis, Double.NaN, memory, "none", List.of(), List.of());
        Cell cell = new Cell(32, 10, true, List.of(new double[] {1, 2, 4}, new double[] {1.5, 2.5, 3.5}, new double[] {1, 2, 3}));
        return new FileMeasurement(file, facts, new SelfTest.Report(4, 0.001, 0.25), List.of(cell), sustained);
    }

    /** What the Python side imports in tests/benchmarks/imported/test_android_app.py. */
    @Test
    public void theJsonIsTheOneThatPythonReads() throws Exception {
        Phone phone = new Phone("Maker", "Model \"7\"", "", "14", 34, "arm64-v8a", 8, 8L << 30, false);
        List<Sustained.Point> points = List.of(new Sustained.Point(1.25, 2, "none"), new Sustained.Point(2.25, 2.5, "light"));
        BenchmarkRecord record = new BenchmarkRecord(
                "2026-11-23T08:00:00Z", "0.1.0", phone, "a typed text", 3, 3, 4.5, "none", "light", "battery, 80 %",
                List.of(measured("onnx/model_int8.onnx", 12.5, 3 << 20, points), measured("onnx/model.onnx", 20, -1, List.of())));
        StringWriter written = new StringWriter();
        record.write(written);
        try (InputStream expected = getClass().getResourceAsStream("/org/pocketbert/statistics/benchmark.json")) {
            String text = new String(expected.readAllBytes(), StandardCharsets.UTF_8);
            assertEquals(text.strip(), written.toString());
        }
    }
}
