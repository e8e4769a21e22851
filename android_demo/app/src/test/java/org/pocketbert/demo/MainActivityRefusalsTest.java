package org.pocketbert.demo;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import org.junit.Before;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.pocketbert.testing.Fixtures;
import org.robolectric.RobolectricTestRunner;

/** Breaks the folder in every way that is foreseen: the screen says what is wrong, and nothing crashes. */
@RunWith(RobolectricTestRunner.class)
public class MainActivityRefusalsTest {
    private static final String MODEL = "onnx/model_int8.onnx";

    private Path phone;

    @Before
    public void push() throws Exception {
        phone = Screen.push(Fixtures.phone("text-classification"));
    }

    private void edit(String file, String from, String to) throws Exception {
        String text = Files.readString(phone.resolve(file));
        assertTrue(file + " holds " + from, text.contains(from));
        Files.writeString(phone.resolve(file), text.replace(from, to));
    }

    /** Replaces a file and gives its new digest to the list: a folder that is wrong, not one that was damaged. */
    private void replace(String file, byte[] bytes) throws Exception {
        Files.write(phone.resolve(file), bytes);
        JsonObject list = JsonParser.parseString(Files.readString(phone.resolve("artifacts.json"))).getAsJsonObject();
        JsonArray files = list.getAsJsonArray("files");
        String digest = String.format("%064x", new BigInteger(1, MessageDigest.getInstance("SHA-256").digest(bytes)));
        for (JsonElement entry : files) {
            JsonElement alias = entry.getAsJsonObject().get("alias_of");
            boolean other = alias == null || alias.isJsonNull() || !alias.getAsString().equals(file);
            if (entry.getAsJsonObject().get("path").getAsString().equals(file) || !other) {
                entry.getAsJsonObject().addProperty("sha256", digest);
                entry.getAsJsonObject().addProperty("bytes", bytes.length);
            }
        }
        Files.write(phone.resolve("artifacts.json"), list.toString().getBytes(StandardCharsets.UTF_8));
    }

    /** Opens the screen and returns its message. */
    private static String refusal() throws Exception {
        try (Screen screen = new Screen().open()) {
            assertFalse(screen.activity().findViewById(R.id.benchmark).isEnabled());
            screen.type("still no crash");
            return screen.message();
        }
    }

    private static void says(String message, String... parts) {
        for (String part : parts) {
            assertTrue(message, message.contains(part));
        }
    }

    @Test
    public void aFileWithAnotherDigest() throws Exception {
        byte[] bytes = Files.readAllBytes(phone.resolve(MODEL));
        bytes[bytes.length / 2] ^= 1;
        Files.write(phone.resolve(MODEL), bytes);
        says(refusal(), "The artefact folder cannot be used.", MODEL, "sha256 is not the listed one");
    }

    @Test
    public void aCorruptModel() throws Exception {
        byte[] bytes = Files.readAllBytes(phone.resolve(MODEL));
        replace(MODEL, java.util.Arrays.copyOf(bytes, bytes.length / 2));
        says(refusal(), "The file is damaged.", MODEL);
    }

    @Test
    public void anUnsupportedOperator() throws Exception {
        replace(MODEL, Files.readAllBytes(Fixtures.path("engines/operator.onnx")));
        says(refusal(), "This engine cannot run the file.", MODEL, "NoSuchOperator");
    }

    @Test
    public void moreMemoryThanThereIs() throws Exception {
        replace(MODEL, Files.readAllBytes(Fixtures.path("engines/memory.onnx")));
        says(refusal(), "Not enough memory.", MODEL);
    }

    @Test
    public void outOfMemoryOfTheJavaHeap() {
        String message = Messages.of(org.robolectric.RuntimeEnvironment.getApplication(), new OutOfMemoryError("heap"));
        says(message, "Not enough memory.");
    }

    @Test
    public void aMissingFile() throws Exception {
        Files.delete(phone.resolve(MODEL));
        says(refusal(), "The artefact folder cannot be used.", MODEL, "not there");
    }

    @Test
    public void aMissingFileOfLabels() throws Exception {
        Files.delete(phone.resolve("config.json"));
        says(refusal(), "The artefact folder cannot be used.", "config.json", "not there");
    }

    @Test
    public void aMissingList() throws Exception {
        Files.delete(phone.resolve("artifacts.json"));
        says(refusal(), "The artefact folder cannot be used.", "artifacts.json", "pocketbert pack");
    }

    @Test
    public void anUnknownSchema() throws Exception {
        edit("artifacts.json", "\"schema_version\": \"1.0\"", "\"schema_version\": \"2.0\"");
        says(refusal(), "The artefact folder cannot be used.", "schema version '2.0'", "reads version 1");
    }

    @Test
    public void aListThatIsNoJson() throws Exception {
        Files.writeString(phone.resolve("artifacts.json"), "{\"schema_version\": ");
        says(refusal(), "The artefact folder cannot be used.", "is not valid JSON");
    }

    @Test
    public void aTokenizerOfAnotherModel() throws Exception {
        String tokenizer = Files.readString(phone.resolve("tokenizer.json"));
        replace("tokenizer.json", tokenizer.replace("\"lowercase\": true", "\"lowercase\": false")
                .replace("\"lowercase\":true", "\"lowercase\":false").getBytes(StandardCharsets.UTF_8));
        says(refusal(), "The artefact folder cannot be used.", "tokenizer.json", "recorded text");
    }

    @Test
    public void anEmptyText() throws Exception {
        try (Screen screen = new Screen().open()) {
            screen.type("word");
            screen.activity().<android.widget.EditText>findViewById(R.id.first).setText("  \n ");
            Screens.until("cleared", () -> screen.result().getChildCount() == 0);
            assertEquals("", screen.message());
            says(screen.text(R.id.timing), "Self-test passed: 4 golden rows.", "Type a text");
        }
    }

    @Test
    public void aHundredThousandCharacters() throws Exception {
        try (Screen screen = new Screen().open()) {
            screen.type("word ".repeat(20_000));
            says(screen.message(), "100,000 characters", "Shorten it");
            screen.activity().<android.widget.EditText>findViewById(R.id.first).setText("word ".repeat(9_999));
            Screens.until("answered", () -> screen.result().getChildCount() > 0);
            says(screen.message(), "longer than 48 tokens");
        }
    }
}
