package org.pocketbert.snippets;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import android.content.Context;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
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
        Class<?> model = compiled("OnnxModel", snippet("Kotlin, with `com.microsoft.onnxruntime:onnxruntime-android`"));
        assertGolden(model, "onnx/model_int8.onnx", 4);
        assertEquals("ORT_DISABLE_TELEMETRY=1", android.system.Os.last);
    }

    /** Below the threshold of the file there is no label, whatever the most probable one is. */
    @Test
    public void unknownAnswersHaveNoLabel() throws Exception {
        String card = Files.readString(PHONE.resolveSibling("text-classification.unknown.md"));
        float least = Float.parseFloat(card.substring(0, card.indexOf('\n')));
        String code = snippet("Kotlin, with `com.microsoft.onnxruntime:onnxruntime-android`", card);
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
