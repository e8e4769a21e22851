package org.pocketbert.artefacts;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.function.UnaryOperator;
import org.junit.Test;
import org.pocketbert.artefacts.ArtefactException.Reason;

public class ArtefactsTest {
    private static ArtefactException refused(Assets assets) {
        return assertThrows(ArtefactException.class, () -> Artefacts.read(assets));
    }

    private static ArtefactException refusedAfter(UnaryOperator<String> change) {
        MemoryAssets assets = MemoryAssets.classifier();
        String list = change.apply(assets.list());
        assertFalse("the change changes nothing", list.equals(assets.list()));
        return refused(assets.put(Artefacts.FILE_NAME, list));
    }

    private static void refused(String from, String to, Reason reason, String words) {
        ArtefactException e = refusedAfter(list -> list.replace(from, to));
        assertEquals(reason, e.reason());
        assertTrue(e.getMessage(), e.getMessage().contains(words));
        assertTrue(e.getMessage(), e.getMessage().startsWith("artifacts.json: "));
    }

    @Test
    public void aFolderIsRead() throws Exception {
        Artefacts artefacts = Artefacts.read(MemoryAssets.classifier());
        assertEquals(Task.TEXT_CLASSIFICATION, artefacts.task());
        assertEquals(List.of("no", "yes"), artefacts.labels());
        assertEquals(16, artefacts.processing().maxLength());
        assertEquals("onnx/model.onnx", artefacts.standard().path());
        assertTrue(artefacts.standard().isFor(List.of("onnx"), List.of()));
        assertFalse(artefacts.standard().isFor(List.of("tflite"), List.of()));
        assertEquals("weights", new String(artefacts.bytes("onnx/model.onnx", 100), StandardCharsets.UTF_8));
        artefacts.verify("onnx/model.onnx");
        assertEquals(new Configuration(3, 9, List.of("no", "yes")), Configuration.read(artefacts));
    }

    @Test
    public void aFileForOneRuntimeIsForEnginesOfThatRuntime() throws Exception {
        MemoryAssets assets = MemoryAssets.classifier();
        assets.put(Artefacts.FILE_NAME, assets.list().replace("\"fp32\"", "\"fp32\", \"runtime\": \"tflite216\""));
        ModelFile file = Artefacts.read(assets).standard();
        assertTrue(file.isFor(List.of("onnx"), List.of("tflite216")));
        assertFalse(file.isFor(List.of("onnx"), List.of()));
    }

    @Test
    public void eachFileHasItsTemperature() throws Exception {
        MemoryAssets assets = MemoryAssets.classifier();
        assertEquals(1, Artefacts.read(assets).standard().temperature(), 0);
        String list = assets.list();
        String told = "\"fp32\", \"confidence\": {\"temperature\": 1.625, \"fitted_rows\": 900}";
        assets.put(Artefacts.FILE_NAME, list.replace("\"fp32\"", told));
        assertEquals(1.625, Artefacts.read(assets).standard().temperature(), 0);
        assets.put(Artefacts.FILE_NAME, list.replace("\"fp32\"", told.replace("1.625, ", "1.625}, \"x\": {")));
        assertEquals(1.625, Artefacts.read(assets).standard().temperature(), 0);
        for (String wrong : List.of("0", "-1", "1e9", "\"hot\"")) {
            refused("\"fp32\"", told.replace("1.625", wrong), Reason.MALFORMED, "temperature");
        }
    }

    @Test
    public void eachFileHasItsThreshold() throws Exception {
        MemoryAssets assets = MemoryAssets.classifier();
        assertEquals(0, Artefacts.read(assets).standard().unknown(), 0);
        String told = "\"fp32\", \"confidence\": {\"temperature\": 1.625, \"unknown\": 0.7125}";
        assets.put(Artefacts.FILE_NAME, assets.list().replace("\"fp32\"", told));
        assertEquals(0.7125, Artefacts.read(assets).standard().unknown(), 0);
        for (String wrong : List.of("-0.1", "1.5", "\"often\"")) {
            refused("\"fp32\"", told.replace("0.7125", wrong), Reason.MALFORMED, "unknown");
        }
    }

    @Test
    public void aMissingListIsRefused() {
        ArtefactException e = refused(new MemoryAssets());
        assertEquals(Reason.MISSING_FILE, e.reason());
        assertTrue(e.getMessage(), e.getMessage().contains("pocketbert pack"));
    }

    @Test
    public void anUnknownMajorSchemaIsRefusedAndAMinorOneIsRead() {
        refused("\"1.3\"", "\"2.0\"", Reason.UNKNOWN_SCHEMA, "schema version '2.0'; this app reads version 1. Update the app");
        refused("\"1.3\"", "\"10.0\"", Reason.UNKNOWN_SCHEMA, "'10.0'");
        refused("\"schema_version\": \"1.3\", ", "", Reason.UNKNOWN_SCHEMA, "schema version ''");
    }

    @Test
    public void pathsThatLeaveTheFolderAreRefused() {
        for (String path : List.of("../weights", "/etc/passwd", "a/../../b", "a//b", "./a", "a\\\\b", "a\\u0000b")) {
            refused("onnx/model.onnx", path, Reason.MALFORMED, "leaves the folder");
        }
    }

    @Test
    public void contradictionsAreRefused() {
        refused("text-classification", "soup", Reason.MALFORMED, "task 'soup'");
        refused("text-classification", "several", Reason.MALFORMED, "processing.score is 'softmax'; of several it is by-head");
        refused("text-classification", "fill-mask", Reason.MALFORMED, "fill-mask has none");
        refused("\"no\", \"yes\"", "\"no\", \"no\"", Reason.MALFORMED, "a name twice");
        refused("\"no\", \"yes\"", "", Reason.MALFORMED, "has some");
        refused("softmax", "sigmoid", Reason.MALFORMED, "processing.score is 'sigmoid'");
        refused("text-classification", "multi-label", Reason.MALFORMED, "processing.score");
        refused("\"max_length\": 16", "\"max_length\": 1.5", Reason.MALFORMED, "processing.max_length is 1.5");
        refused("\"max_length\": 16", "\"max_length\": 16, \"padding_side\": \"top\"", Reason.MALFORMED, "allowed: right, left");
        refused(
                "\"max_length\": 16", "\"max_length\": 16, \"truncation_side\": \"top\"", Reason.MALFORMED, "truncation_side is 'top'");
        refused(
                "\"max_length\": 16",
                "\"max_length\": 16, \"prompts\": {\"query\": \"\"}, \"default_prompt\": \"other\"",
                Reason.MALFORMED,
                "default_prompt is 'other', which is not in processing.prompts");
        refused("config.json", "onnx/model.onnx", Reason.MALFORMED, "is listed twice");
        refused("\"model\"", "\"weights\"", Reason.MALFORMED, "no model file is listed");
        refused("\"passed\"", "\"failed\"", Reason.MALFORMED, "no model file is listed");
        refused("\"bytes\": 7", "\"bytes\": -7", Reason.MALFORMED, "bytes is -7");
        refused("\"sha256\": \"", "\"sha256\": \"x", Reason.MALFORMED, "64 hexadecimal digits");
    }

    @Test
    public void severalHeadsAreReadInTheOrderOfTheirColumns() throws Exception {
        MemoryAssets assets = heads("{\"mood\": \"regression\", \"topics\": \"multi-label\"}");
        Artefacts artefacts = Artefacts.read(assets);
        assertEquals(Task.SEVERAL, artefacts.task());
        NamedHead topics = artefacts.heads().get(0);
        assertEquals("topics", topics.name());
        assertEquals(List.of("no", "yes"), topics.labels());
        assertEquals(List.of("topics_logits"), topics.outputs());
        assertEquals(0.5, topics.thresholds()[1], 0);
        assertEquals(2, artefacts.heads().get(1).start());
        assertEquals(1, artefacts.heads().get(1).width());
        ArtefactException e = assertThrows(ArtefactException.class, () -> Configuration.read(artefacts));
        assertTrue(e.getMessage(), e.getMessage().contains("pocketbert_heads is {}, the list has {"));
    }

    @Test
    public void headsThatDoNotFitTheirLabelsAreRefused() {
        for (String wrong : List.of(
                "{}",
                "{\"topics\": \"multi-label\"}",
                "{\"topics\": \"multi-label\", \"other\": \"regression\"}",
                "{\"topics\": \"multi-label\", \"mood\": \"regression\", \"x\": \"regression\", \"y\": \"regression\"}",
                "{\"topics\": \"regression\", \"mood\": \"regression\"}")) {
            ArtefactException e = refused(heads(wrong));
            assertTrue(e.getMessage(), e.getMessage().contains("do not fit the labels"));
        }
        for (String task : List.of("fill-mask", "several", "soup")) {
            ArtefactException e = refused(heads("{\"topics\": \"multi-label\", \"mood\": \"" + task + "\"}"));
            assertTrue(e.getMessage(), e.getMessage().contains("heads.mood is '" + task + "'"));
        }
    }

    private static MemoryAssets heads(String heads) {
        MemoryAssets assets = MemoryAssets.classifier();
        assets.put("config.json", "{\"id2label\": {\"0\": \"topics: no\", \"1\": \"topics: yes\", \"2\": \"mood: number\"}}");
        String list = assets.list()
                .replace("\"text-classification\"", "\"several\", \"heads\": " + heads)
                .replace("\"no\", \"yes\"", "\"topics: no\", \"topics: yes\", \"mood: number\"")
                .replace("softmax", "by-head");
        return assets.put(Artefacts.FILE_NAME, list);
    }

    @Test
    public void textThatIsNotStrictJsonIsRefused() {
        refused("\"name\": \"tiny\"", "\"name\": \"tiny\", \"name\": \"x\"", Reason.MALFORMED, "'name' is there twice");
        refused("\"name\": \"tiny\"", "name: 'tiny'", Reason.MALFORMED, "not valid JSON");
        refused("]}", "]", Reason.MALFORMED, "not valid JSON");
        assertEquals(Reason.MALFORMED, refusedAfter(list -> list + "{}").reason());
        assertEquals(Reason.MALFORMED, refusedAfter(list -> "[".repeat(100_000)).reason());
        assertEquals(Reason.MALFORMED, refusedAfter(list -> "3").reason());
    }

    @Test
    public void anEndlessListIsNotRead() {
        Assets endless = path -> new InputStream() {
            @Override
            public int read() {
                return ' ';
            }
        };
        assertEquals(Reason.TOO_LARGE, refused(endless).reason());
    }

    @Test
    public void aListThatIsNotUtf8IsRefused() {
        MemoryAssets assets = new MemoryAssets();
        assets.files.put(Artefacts.FILE_NAME, new byte[] {'"', (byte) 0xff, '"'});
        assertEquals(Reason.MALFORMED, refused(assets).reason());
    }

    @Test
    public void aChangedFileIsRefusedWhetherItIsReadOrOnlyCompared() throws Exception {
        for (String content : List.of("WEIGHTS", "weight", "weights and more", "")) {
            MemoryAssets assets = MemoryAssets.classifier();
            Artefacts artefacts = Artefacts.read(assets);
            assets.put("onnx/model.onnx", content);
            ArtefactException e = assertThrows(ArtefactException.class, () -> artefacts.verify("onnx/model.onnx"));
            assertEquals(Reason.WRONG_DIGEST, e.reason());
            assertEquals("onnx/model.onnx", e.path());
            e = assertThrows(ArtefactException.class, () -> artefacts.bytes("onnx/model.onnx", 100));
            assertEquals(Reason.WRONG_DIGEST, e.reason());
        }
    }

    @Test
    public void aReaderThatStopsEarlyFinishesTheComparison() throws Exception {
        MemoryAssets assets = MemoryAssets.classifier();
        Artefacts artefacts = Artefacts.read(assets);
        assets.put("onnx/model.onnx", "weightS");
        try (VerifiedStream stream = artefacts.open("onnx/model.onnx")) {
            assertEquals('w', stream.read());
            assertThrows(VerifiedStream.Difference.class, stream::finish);
        }
    }

    @Test
    public void aMissingFileIsRefused() throws Exception {
        MemoryAssets assets = MemoryAssets.classifier();
        Artefacts artefacts = Artefacts.read(assets);
        assets.files.remove("config.json");
        ArtefactException e = assertThrows(ArtefactException.class, () -> Configuration.read(artefacts));
        assertEquals(Reason.MISSING_FILE, e.reason());
        assertTrue(e.getMessage(), e.getMessage().startsWith("config.json: is listed, but not there."));
        e = assertThrows(ArtefactException.class, () -> artefacts.verify("tokenizer.json"));
        assertTrue(e.getMessage(), e.getMessage().contains("not in the list"));
    }

    @Test
    public void labelsOfTheConfigurationMustBeThoseOfTheList() throws Exception {
        MemoryAssets assets = MemoryAssets.classifier();
        assets.put("config.json", "{\"id2label\": {\"0\": \"yes\", \"1\": \"no\"}}");
        assets.put(Artefacts.FILE_NAME, assets.list());
        Artefacts artefacts = Artefacts.read(assets);
        ArtefactException e = assertThrows(ArtefactException.class, () -> Configuration.read(artefacts));
        assertTrue(e.getMessage(), e.getMessage().contains("output 0 is 'yes' instead of 'no'"));
    }

    @Test
    public void aFileThatIsTooLargeIsNotRead() throws Exception {
        Artefacts artefacts = Artefacts.read(MemoryAssets.classifier());
        ArtefactException e = assertThrows(ArtefactException.class, () -> artefacts.bytes("onnx/model.onnx", 3));
        assertEquals(Reason.TOO_LARGE, e.reason());
    }

    @Test
    public void assetsOfTheClassPathAreOpened() throws Exception {
        Assets assets = new ClassPathAssets(ArtefactsTest.class.getClassLoader(), "org/pocketbert/artefacts");
        try (InputStream stream = assets.open("ArtefactsTest.class")) {
            assertEquals(0xca, stream.read());
        }
        assertThrows(java.io.FileNotFoundException.class, () -> assets.open("none"));
    }

    @Test
    public void storageThatFailsIsToldFromAMissingFile() throws Exception {
        MemoryAssets assets = MemoryAssets.classifier();
        byte[] list = assets.files.get(Artefacts.FILE_NAME);
        Artefacts artefacts = Artefacts.read(path -> {
            if (path.equals(Artefacts.FILE_NAME)) {
                return new ByteArrayInputStream(list);
            }
            throw new java.io.IOException("input/output error");
        });
        ArtefactException e = assertThrows(ArtefactException.class, () -> artefacts.verify("onnx/model.onnx"));
        assertEquals(Reason.UNREADABLE, e.reason());
    }
}
