package org.pocketbert.answers;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import org.junit.Assume;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.FolderAssets;
import org.pocketbert.text.Input;
import org.pocketbert.text.TextEncoder;
import org.pocketbert.tokenizers.Encoding;
import org.pocketbert.tokenizers.Encodings;

/** Reads what tests/android/answer_files.py wrote: random outputs, and what the Python side answers. */
public final class Cases {
    /** The folder of one kit. */
    public final File folder;

    private Cases(File folder) {
        this.folder = folder;
    }

    /** The folder with the kits; the test is skipped where Python wrote none. */
    public static File root() {
        File root = new File(System.getProperty("pocketbert.fixtures", ""), "answers");
        Assume.assumeTrue("skipped: no fixtures in " + root + "; make test-android writes them", root.isDirectory());
        return root;
    }

    /** One kit. */
    public static Cases of(String kit) {
        return new Cases(new File(root(), kit));
    }

    /** The names of all kits. */
    public static List<String> kits() {
        List<String> out = new ArrayList<>();
        for (File file : root().listFiles()) {
            if (file.isDirectory()) {
                out.add(file.getName());
            }
        }
        return out;
    }

    /** The artefact folder of the kit. */
    public Artefacts artefacts() throws Exception {
        return Artefacts.read(new FolderAssets(folder));
    }

    /** Objects of a file with one on each line. */
    public static List<JsonObject> lines(File file) throws IOException {
        List<JsonObject> out = new ArrayList<>();
        for (String line : Files.readAllLines(file.toPath(), StandardCharsets.UTF_8)) {
            out.add(JsonParser.parseString(line).getAsJsonObject());
        }
        return out;
    }

    /** The cases. */
    public List<JsonObject> cases() throws IOException {
        return lines(new File(folder, "cases.jsonl"));
    }

    /** What was asked. */
    public static Input input(JsonElement texts) {
        if (texts.isJsonPrimitive()) {
            return Input.of(texts.getAsString());
        }
        JsonElement second = texts.getAsJsonArray().get(1);
        return new Input(
                texts.getAsJsonArray().get(0).getAsString(), second.isJsonNull() ? null : second.getAsString());
    }

    /** The rows that the model read. */
    public static List<Encoding> rows(JsonObject example) {
        List<Encoding> out = new ArrayList<>();
        for (JsonElement element : example.getAsJsonArray("rows")) {
            JsonObject row = element.getAsJsonObject();
            out.add(Encodings.of(
                    whole(row, "ids"),
                    whole(row, "type_ids"),
                    whole(row, "starts"),
                    whole(row, "ends"),
                    whole(row, "words"),
                    whole(row, "parts"),
                    row.get("truncated").getAsBoolean()));
        }
        return out;
    }

    /** Whole numbers under a key. */
    public static int[] whole(JsonObject row, String key) {
        List<JsonElement> list = row.getAsJsonArray(key).asList();
        return list.stream().mapToInt(JsonElement::getAsInt).toArray();
    }

    /** Numbers under a key. */
    public static double[] numbers(JsonObject row, String key) {
        return row.getAsJsonArray(key).asList().stream().mapToDouble(JsonElement::getAsDouble).toArray();
    }

    /** What a column of the tests' engine holds: a number for each token or for the whole text, and what it is multiplied by. */
    public record Column(boolean perToken, double factor) {}

    /** The columns of the tests' engine. */
    public List<Column> columns() throws IOException {
        List<Column> out = new ArrayList<>();
        for (JsonElement column : tokens().getAsJsonArray("columns")) {
            JsonArray both = column.getAsJsonArray();
            out.add(new Column(both.get(0).getAsBoolean(), both.get(1).getAsDouble()));
        }
        return out;
    }

    private JsonObject tokens() throws IOException {
        String json = Files.readString(new File(folder, "tokens.json").toPath(), StandardCharsets.UTF_8);
        return JsonParser.parseString(json).getAsJsonObject();
    }

    /** An encoder that returns given rows, and spells tokens as the kit does. */
    public TextEncoder encoder(List<Encoding> rows) throws IOException {
        JsonObject spelled = tokens();
        return new TextEncoder() {
            @Override
            public Encoding encode(Input input, int maxLength) {
                return rows.get(0);
            }

            @Override
            public List<Encoding> windows(Input input, int maxLength, int stride) {
                return rows;
            }

            @Override
            public int maskId() {
                return spelled.get("mask_id").getAsInt();
            }

            @Override
            public String token(int id) {
                return spelled.getAsJsonArray("tokens").get(id).getAsJsonArray().get(0).getAsString();
            }

            @Override
            public String decode(int id) {
                return spelled.getAsJsonArray("tokens").get(id).getAsJsonArray().get(1).getAsString();
            }
        };
    }
}
