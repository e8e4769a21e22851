package org.pocketbert.demo;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import android.widget.EditText;
import android.widget.Spinner;
import com.google.gson.JsonObject;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.pocketbert.testing.Fixtures;
import org.pocketbert.testing.Shim;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.annotation.Config;

/** Types into the main screen with the real models of the fixtures, one for each task. */
@RunWith(RobolectricTestRunner.class)
public class MainActivityTest {
    /** Answers that the toolkit gave in Python, with the file that the app opens. */
    private static List<JsonObject> answers(String task) throws Exception {
        return Fixtures.lines(Fixtures.path("phones/" + task + ".app_answers.jsonl"));
    }

    private static String best(JsonObject scores) {
        return scores.keySet().stream().max((a, b) -> Double.compare(
                scores.get(a).getAsDouble(), scores.get(b).getAsDouble())).orElseThrow();
    }

    @Test
    public void aTypedSentenceIsAnswered() throws Exception {
        JsonObject row = answers("text-classification").get(0);
        try (Screen screen = new Screen().open()) {
            screen.type(row.get("text").getAsString());
            assertEquals("", screen.message());
            String shown = Screens.texts(screen.result());
            assertTrue(shown, shown.contains("[" + best(row.getAsJsonObject("answer")) + ": "));
            assertTrue(shown, shown.contains(", chosen]"));
            assertEquals(3, screen.result().getChildCount());
            assertTrue(screen.text(R.id.timing), screen.text(R.id.timing).contains("ms for"));
            assertEquals("text-classification", screen.text(R.id.model).split(" · ")[1]);
        }
    }

    @Test
    public void onlyTheLastOfManyKeyPressesIsShown() throws Exception {
        JsonObject row = answers("text-classification").get(1);
        try (Screen screen = new Screen().open()) {
            String text = row.get("text").getAsString();
            for (int end = 1; end <= text.length(); end++) {
                screen.activity().<EditText>findViewById(R.id.first).setText(text.substring(0, end));
            }
            screen.answered();
            assertTrue(Screens.texts(screen.result()).contains("[" + best(row.getAsJsonObject("answer")) + ": "));
        }
    }

    @Test
    public void turningThePhoneKeepsTextAnswerAndModel() throws Exception {
        try (Screen screen = new Screen().open()) {
            screen.type("set an alarm for half past six");
            String before = Screens.texts(screen.result());
            screen.activity().<EditText>findViewById(R.id.first).setText("the film was far better");
            screen.controller().recreate(); // In the middle of a prediction.
            assertEquals("the film was far better", screen.text(R.id.first));
            Screens.until("answered anew", () -> !Screens.texts(screen.result()).equals(before));
            assertTrue(Screens.texts(screen.result()).contains(", chosen]"));
            assertTrue(screen.activity().findViewById(R.id.benchmark).isEnabled());
        }
    }

    @Test
    public void spansAreColoured() throws Exception {
        Screen.push(Fixtures.phone("token-classification"));
        for (JsonObject row : answers("token-classification").subList(0, 6)) {
            try (Screen screen = new Screen().open()) {
                String text = row.get("text").getAsString();
                screen.type(text);
                String shown = Screens.texts(screen.result());
                for (var span : row.getAsJsonArray("answer")) {
                    int start = text.offsetByCodePoints(0, span.getAsJsonArray().get(0).getAsInt());
                    int end = text.offsetByCodePoints(0, span.getAsJsonArray().get(1).getAsInt());
                    String piece = text.substring(start, end);
                    assertTrue(shown, shown.contains(piece + " is " + span.getAsJsonArray().get(2).getAsString()));
                }
            }
        }
    }

    @Test
    public void anAnswerIsShownInItsContext() throws Exception {
        Screen.push(Fixtures.phone("question-answering"));
        JsonObject row = answers("question-answering").get(1);
        try (Screen screen = new Screen().open()) {
            screen.activity().<EditText>findViewById(R.id.second).setText(row.getAsJsonArray("text").get(1).getAsString());
            screen.type(row.getAsJsonArray("text").get(0).getAsString());
            String shown = Screens.texts(screen.result());
            assertTrue(shown, shown.contains("Answer: " + row.get("answer").getAsString()));
        }
    }

    @Test
    public void masksAreFilled() throws Exception {
        Screen.push(Fixtures.phone("fill-mask"));
        try (Screen screen = new Screen().open()) {
            assertEquals("Text with [MASK]", screen.text(R.id.first_label));
            for (JsonObject row : answers("fill-mask")) {
                screen.result().removeAllViews();
                screen.type(row.get("text").getAsString());
                String best = row.getAsJsonArray("answer").get(0).getAsString();
                assertTrue(Screens.texts(screen.result()), Screens.texts(screen.result()).contains("[" + best + ": "));
            }
            screen.result().removeAllViews();
            screen.type("no place to guess at");
            assertTrue(Screens.texts(screen.result()).contains("Write [MASK] where"));
        }
    }

    @Test
    public void vectorsFindTheNearestSentence() throws Exception {
        Screen.push(Fixtures.phone("feature-extraction"));
        try (Screen screen = new Screen().open()) {
            screen.type("The weather is fine today.");
            String shown = Screens.texts(screen.result());
            assertTrue(shown, shown.contains("[The weather is fine today.: 1.000, chosen]"));
        }
    }

    @Test
    public void numbersAndSeveralLabelsAreShown() throws Exception {
        Screen.push(Fixtures.phone("regression"));
        JsonObject row = answers("regression").get(0);
        try (Screen screen = new Screen().open()) {
            screen.type(row.get("text").getAsString());
            String shown = Screens.texts(screen.result());
            double value = Double.parseDouble(shown.strip().replace("Value: ", ""));
            assertEquals(row.get("answer").getAsDouble(), value, 0.005);
        }
        Screen.push(Fixtures.phone("multi-label"));
        try (Screen screen = new Screen().open()) {
            JsonObject labels = answers("multi-label").get(0);
            screen.type(labels.get("text").getAsString());
            assertEquals(4, screen.result().getChildCount());
        }
    }

    @Test
    public void eachOfSeveralHeadsHasAPartUnderItsName() throws Exception {
        Screen.push(Fixtures.phone("several"));
        int pieces = 0;
        for (JsonObject row : answers("several").subList(0, 6)) {
            try (Screen screen = new Screen().open()) {
                assertTrue(screen.text(R.id.model).endsWith(" · slots: token-classification, intent: text-classification"));
                String text = row.get("text").getAsString();
                screen.type(text);
                String shown = Screens.texts(screen.result());
                int slots = shown.indexOf("slots\n");
                int intent = shown.indexOf("\nintent\n");
                assertTrue(shown, slots == 0 && intent > 0);
                JsonObject answer = row.getAsJsonObject("answer");
                for (var span : answer.getAsJsonArray("slots")) {
                    int start = text.offsetByCodePoints(0, span.getAsJsonArray().get(0).getAsInt());
                    int end = text.offsetByCodePoints(0, span.getAsJsonArray().get(1).getAsInt());
                    String said = text.substring(start, end) + " is " + span.getAsJsonArray().get(2).getAsString();
                    assertTrue(shown, shown.substring(0, intent).contains(said));
                    pieces++;
                }
                String best = best(answer.getAsJsonObject("intent"));
                assertTrue(shown, shown.substring(intent).matches("(?s).*\\[\\Q" + best + "\\E: [^\\]]*, chosen\\].*"));
            }
        }
        assertTrue("some text has slots", pieces > 0);
    }

    @Test
    public void anotherFileIsOpenedWhenItIsChosen() throws Exception {
        Screen.push(Fixtures.phone("text-classification"));
        try (Screen screen = new Screen().open()) {
            Spinner files = screen.activity().findViewById(R.id.file);
            assertEquals("model_int8.onnx · ONNX Runtime", files.getSelectedItem());
            for (int i = 0; i < files.getCount(); i++) {
                if (files.getItemAtPosition(i).toString().startsWith("model.onnx ")) {
                    files.setSelection(i);
                }
            }
            Spinner threads = screen.activity().findViewById(R.id.threads);
            threads.setSelection(Math.min(1, threads.getCount() - 1));
            Screens.until("closed", () -> !screen.activity().findViewById(R.id.benchmark).isEnabled());
            screen.settle();
            screen.type("no");
            assertEquals("model.onnx · ONNX Runtime", files.getSelectedItem());
            assertEquals("", screen.message());
        }
    }

    @Test
    public void theNativeCodeOfTheTfliteAarAnswersInTheApp() throws Exception {
        Shim.loadOrSkip();
        Path pushed = Screen.push(Fixtures.phone("text-classification"));
        try (Screen screen = new Screen().open()) {
            choose(screen, "model_int8_tflite216.tflite");
            screen.settle();
            assertEquals("", screen.message());
            screen.type("the film was far better than I had expected, would recommend it");
            assertTrue(Screens.texts(screen.result()).contains(", chosen]"));
            choose(screen, "model_int8.tflite");
            Screens.until("refused", () -> !screen.message().isEmpty());
            String refusal = screen.message();
            assertTrue(refusal, refusal.startsWith("Self-test failed: this engine computes wrong answers with this file."));
            assertTrue(refusal, refusal.contains("tflite/model_int8_tflite216.tflite"));
            assertFalse(screen.activity().findViewById(R.id.benchmark).isEnabled());
        }
        assertTrue(pushed.toFile().isDirectory());
    }

    private static void choose(Screen screen, String name) throws Exception {
        Spinner files = screen.activity().findViewById(R.id.file);
        for (int i = 0; i < files.getCount(); i++) {
            if (files.getItemAtPosition(i).toString().startsWith(name + " ")) {
                files.setSelection(i);
                Screens.until("closed", () -> !screen.activity().findViewById(R.id.benchmark).isEnabled());
                return;
            }
        }
        throw new AssertionError(name + " is not offered");
    }

    @Test
    @Config(qualifiers = "de")
    public void theScreenSpeaksGerman() throws Exception {
        try (Screen screen = new Screen().open()) {
            screen.type("set an alarm");
            String shown = Screens.texts(screen.activity().getWindow().getDecorView());
            assertTrue(shown, shown.contains("Datei und Laufzeit"));
            assertTrue(shown, shown.contains(", gewählt]"));
            assertTrue(shown, shown.contains("ms für"));
        }
        assertEquals("de", Locale.getDefault().getLanguage());
    }
}
