package org.pocketbert.snippets;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;

import com.google.gson.JsonObject;
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
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.jetbrains.kotlin.cli.common.ExitCode;
import org.jetbrains.kotlin.cli.jvm.K2JVMCompiler;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;
import org.pocketbert.testing.Fixtures;
import org.pocketbert.testing.Shim;

/** Takes the Kotlin code out of the model card, compiles it as it stands, and compares what it answers with the golden rows. */
public class CardSnippetsTest {
    private static final Path PHONE = Fixtures.phone("text-classification");
    private static final int SHORT = 16;

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    /** Returns the code under the card's paragraph that begins with a lead. */
    private static String snippet(String lead) throws Exception {
        String card = Files.readString(PHONE.resolve("README.md"));
        Matcher found = Pattern.compile(Pattern.quote(lead) + "(?:[^\n]+\n)*?\n```kotlin\n(.*?)\n```", Pattern.DOTALL).matcher(card);
        if (!found.find()) {
            throw new AssertionError("the card has no paragraph that begins with " + lead);
        }
        return found.group(1);
    }

    /** Compiles code as the body of a function and returns the function. */
    private Method compiled(String imports, String parameters, String code) throws Exception {
        File source = folder.newFile("Snippet.kt");
        File classes = folder.newFolder();
        String body = imports + "\nfun answer(" + parameters + "): FloatArray {\n" + code + "\nreturn logits[0]\n}\n";
        Files.writeString(source.toPath(), body);
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        ExitCode code0 = new K2JVMCompiler().exec(
                new PrintStream(said, true, StandardCharsets.UTF_8),
                "-no-stdlib", "-no-reflect", "-nowarn", "-jvm-target", "17",
                "-classpath", System.getProperty("java.class.path"),
                "-d", classes.getPath(), source.getPath());
        assertEquals(said.toString(StandardCharsets.UTF_8) + body, ExitCode.OK, code0);
        URLClassLoader loader = new URLClassLoader(new URL[] {classes.toURI().toURL()}, getClass().getClassLoader());
        return Arrays.stream(loader.loadClass("SnippetKt").getMethods())
                .filter(method -> method.getName().equals("answer")).findFirst().orElseThrow();
    }

    private static JsonObject golden() throws Exception {
        return Fixtures.lines(PHONE.resolve("golden.jsonl")).get(0);
    }

    private static long[] ids() throws Exception {
        return Fixtures.longs(Fixtures.lines(PHONE.resolve("golden_tokens.jsonl")).get(0).getAsJsonArray("ids"));
    }

    private static void assertGolden(String path, float[] logits) throws Exception {
        float tolerance = golden().getAsJsonObject("tolerance").get(path).getAsFloat();
        assertArrayEquals(Fixtures.floats(golden().getAsJsonObject("outputs").getAsJsonArray(path)), logits, tolerance);
    }

    private static String withPath(String code, String path, String other) {
        assertEquals("the card names " + path + " once", 2, code.split(Pattern.quote("\"" + path + "\""), -1).length);
        return code.replace("\"" + path + "\"", "\"" + PHONE.resolve(other) + "\"");
    }

    @Test
    public void onnxRuntime() throws Exception {
        String path = "onnx/model_int8.onnx";
        String code = withPath(snippet("Kotlin, with `com.microsoft.onnxruntime:onnxruntime-android`"), path, path);
        Method answer = compiled(
                "import ai.onnxruntime.*", "inputIds: LongArray, attentionMask: LongArray, tokenTypeIds: LongArray", code);
        long[] mask = new long[ids().length];
        Arrays.fill(mask, 1);
        assertGolden(path, (float[]) answer.invoke(null, ids(), mask, new long[mask.length]));
        assertEquals("ORT_DISABLE_TELEMETRY=1", android.system.Os.last);
    }

    /** LiteRT's Kotlin code runs on TFLite 2.16 with the file made for it: the classes have the same names. */
    @Test
    public void litertOnTheAarsOwnNativeCode() throws Exception {
        Shim.loadOrSkip();
        String path = "tflite/model_int8_tflite216.tflite";
        String code = withPath(snippet("Kotlin, with `com.google.ai.edge.litert:litert`"), "tflite/model_int8.tflite", path);
        Method answer = compiled(
                "import java.io.File\nimport org.tensorflow.lite.Interpreter",
                "inputIds: IntArray, attentionMask: IntArray, tokenTypeIds: IntArray, count: Int",
                code);
        int count = ids().length;
        int length = count <= SHORT ? SHORT : 48;
        int[] ids = Arrays.copyOf(Arrays.stream(ids()).mapToInt(Math::toIntExact).toArray(), length);
        int[] mask = new int[length];
        Arrays.fill(mask, 0, count, 1);
        assertGolden(path, (float[]) answer.invoke(null, ids, mask, new int[length], count));
    }
}
