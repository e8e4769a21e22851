package org.pocketbert.snippets;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import android.content.Context;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import kotlin.Pair;
import org.jetbrains.kotlin.cli.common.ExitCode;
import org.jetbrains.kotlin.cli.jvm.K2JVMCompiler;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;
import org.pocketbert.testing.Fixtures;
import org.pocketbert.testing.Shim;

/**
 * Takes the Kotlin code out of the model card, compiles it as it stands, and compares what it answers with the golden rows.
 *
 * <p>The classes of Android that the code names are stand-ins: its assets are the artefact folder itself.
 */
public class CardSnippetsTest {
    private static final String ONNX = "Kotlin, with `com.microsoft.onnxruntime:onnxruntime-android`";
    private static final Path PHONE = Fixtures.phone("text-classification");

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    /** Returns the code under the card's paragraph that begins with a lead. */
    private static String snippet(String lead) throws Exception {
        return snippet(lead, Files.readString(PHONE.resolve("README.md")));
    }

    private static String snippet(String lead, String card) {
        Matcher found = Pattern.compile(Pattern.quote(lead) + "(?:[^\n]+\n)*?\n```kotlin\n(.*?)\n```", Pattern.DOTALL).matcher(card);
        if (!found.find()) {
            throw new AssertionError("the card has no paragraph that begins with " + lead);
        }
        return found.group(1);
    }

    /** Compiles code as a file and returns its class. */
    private Class<?> compiled(String name, String code) throws Exception {
        File source = folder.newFile("Snippet.kt");
        File classes = folder.newFolder();
        Files.writeString(source.toPath(), code + "\n");
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        ExitCode ended = new K2JVMCompiler().exec(
                new PrintStream(said, true, StandardCharsets.UTF_8),
                "-no-stdlib", "-no-reflect", "-nowarn", "-jvm-target", "17",
                "-classpath", System.getProperty("java.class.path"),
                "-d", classes.getPath(), source.getPath());
        assertEquals(said.toString(StandardCharsets.UTF_8) + code, ExitCode.OK, ended);
        return new URLClassLoader(new URL[] {classes.toURI().toURL()}, getClass().getClassLoader()).loadClass(name);
    }

    /** Asks the card's class about every golden text, and expects the label and the probability that were recorded. */
    private static void assertGolden(Class<?> compiled, String path, int least) throws Exception {
        JsonObject labels = JsonParser.parseString(Files.readString(PHONE.resolve("config.json")))
                .getAsJsonObject().getAsJsonObject("id2label");
        int compared = 0;
        try (AutoCloseable model = (AutoCloseable) compiled.getConstructor(Context.class).newInstance(new Context(PHONE))) {
            for (JsonObject row : rows(path)) {
                float[] recorded = Fixtures.floats(row.getAsJsonObject("outputs").getAsJsonArray(path));
                float tolerance = row.getAsJsonObject("tolerance").get(path).getAsFloat();
                Pair<?, ?> answer = (Pair<?, ?>) compiled.getMethod("answer", String.class).invoke(model, row.get("text").getAsString());
                int best = best(recorded);
                if (clear(recorded, best, 2 * tolerance)) {
                    assertEquals(labels.get(String.valueOf(best)).getAsString(), answer.getFirst());
                    compared++;
                    assertEquals(softmax(recorded, best), (Float) answer.getSecond(), tolerance);
                }
            }
        }
        assertTrue(compared + " rows were compared", compared >= least);
    }

    private static List<JsonObject> rows(String path) throws Exception {
        return Fixtures.lines(PHONE.resolve("golden.jsonl")).stream()
                .filter(row -> row.get("text").isJsonPrimitive() && row.getAsJsonObject("outputs").has(path)).toList();
    }

    private static int best(float[] values) {
        int best = 0;
        for (int i = 1; i < values.length; i++) {
            best = values[i] > values[best] ? i : best;
        }
        return best;
    }

    private static boolean clear(float[] values, int best, float margin) {
        for (int i = 0; i < values.length; i++) {
            if (i != best && values[best] - values[i] <= margin) {
                return false;
            }
        }
        return true;
    }

    private static float softmax(float[] values, int of) {
        double sum = 0;
        for (float value : values) {
            sum += Math.exp(value - values[of]);
        }
        return (float) (1 / sum);
    }

    @Test
    public void onnxRuntime() throws Exception {
        Class<?> model = compiled("OnnxModel", snippet(ONNX));
        assertGolden(model, "onnx/model_int8.onnx", 4);
        assertEquals("ORT_DISABLE_TELEMETRY=1", android.system.Os.last);
    }

    /** Below the threshold of the file there is no label, whatever the most probable one is. */
    @Test
    public void unknownAnswersHaveNoLabel() throws Exception {
        String card = Files.readString(PHONE.resolveSibling("text-classification.unknown.md"));
        float least = Float.parseFloat(card.substring(0, card.indexOf('\n')));
        String code = snippet(ONNX, card);
        assertTrue(code, code.contains("Pair<String?, Float>"));
        Class<?> compiled = compiled("OnnxModel", code);
        int unknown = 0;
        int known = 0;
        try (AutoCloseable model = (AutoCloseable) compiled.getConstructor(Context.class).newInstance(new Context(PHONE))) {
            for (JsonObject row : rows("onnx/model_int8.onnx")) {
                Pair<?, ?> answer = (Pair<?, ?>) compiled.getMethod("answer", String.class).invoke(model, row.get("text").getAsString());
                boolean below = (Float) answer.getSecond() < least;
                assertEquals(below, answer.getFirst() == null);
                unknown += below ? 1 : 0;
                known += below ? 0 : 1;
            }
        }
        assertTrue(unknown + " unknown, " + known + " known", unknown > 0 && known > 0);
    }

    /** The code of a folder with prompts has their texts as they are, and puts one in front of a text. */
    @Test
    public void promptsStandInFrontOfTheText() throws Exception {
        Path phone = Fixtures.phone("feature-extraction");
        JsonObject other = other(phone);
        Class<?> compiled = compiled("OnnxModel", snippet(ONNX, other.get("code").getAsString()));
        Object companion = compiled.getField("Companion").get(null);
        Map<?, ?> prompts = (Map<?, ?>) companion.getClass().getMethod("getPROMPTS").invoke(companion);
        Map<String, String> recorded = new HashMap<>();
        other.getAsJsonObject("prompts").entrySet().forEach(e -> recorded.put(e.getKey(), e.getValue().getAsString()));
        assertEquals(recorded, prompts);
        assertEquals(2, prompts.size());
        Method answer = compiled.getMethod("answer", String.class, String.class);
        Method byDefault = compiled.getMethod("answer$default", compiled, String.class, String.class, int.class, Object.class);
        try (AutoCloseable model = (AutoCloseable) compiled.getConstructor(Context.class).newInstance(new Context(phone))) {
            float[] expected = (float[]) answer.invoke(model, "query: a text", "");
            assertArrayEquals(expected, (float[]) answer.invoke(model, "a text", "query: "), 0);
            assertArrayEquals(expected, (float[]) byDefault.invoke(null, model, "a text", null, 2, null), 0);
            assertFalse(Arrays.equals(expected, (float[]) answer.invoke(model, "a text", "")));
        }
    }

    /** A reranker's answer is the sigmoid of its logit, of the end of a text that is too long. */
    @Test
    public void aRerankerAnswersBetweenZeroAndOne() throws Exception {
        Path phone = Fixtures.phone("regression");
        Class<?> compiled = compiled("OnnxModel", snippet(ONNX, other(phone).get("code").getAsString()));
        Method answer = compiled.getMethod("answer", String.class);
        int compared = 0;
        try (AutoCloseable model = (AutoCloseable) compiled.getConstructor(Context.class).newInstance(new Context(phone))) {
            for (JsonObject row : Fixtures.lines(phone.resolve("golden.jsonl"))) {
                // longer texts are cut, and those that are recorded lost their end
                if (row.get("text").isJsonPrimitive() && row.get("text").getAsString().length() <= 40) {
                    float logit = Fixtures.floats(row.getAsJsonObject("outputs").getAsJsonArray("onnx/model.onnx"))[0];
                    float tolerance = row.getAsJsonObject("tolerance").get("onnx/model.onnx").getAsFloat();
                    float score = (Float) answer.invoke(model, row.get("text").getAsString());
                    assertEquals(1 / (1 + Math.exp(-logit)), score, tolerance);
                    compared++;
                }
            }
            String end = "the end of it ".repeat(40);
            assertEquals(answer.invoke(model, end), answer.invoke(model, "another beginning " + end));
        }
        assertTrue(compared + " rows were compared", compared > 4);
    }

    private static JsonObject other(Path phone) throws Exception {
        String json = Files.readString(phone.resolveSibling(phone.getFileName() + ".other.json"));
        return JsonParser.parseString(json).getAsJsonObject();
    }

    /** LiteRT's Kotlin code runs on TFLite 2.16 with the file made for it: the classes have the same names. */
    @Test
    public void litertOnTheAarsOwnNativeCode() throws Exception {
        Shim.loadOrSkip();
        String named = "\"tflite/model_int8.tflite\"";
        String path = "tflite/model_int8_tflite216.tflite";
        String code = snippet("Kotlin, with `com.google.ai.edge.litert:litert`");
        assertEquals("the card names the file once", 2, code.split(Pattern.quote(named), -1).length);
        assertGolden(compiled("LitertModel", code.replace(named, "\"" + path + "\"")), path, 4);
    }
}
