package org.pocketbert.testing;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.pocketbert.engines.ModelSource;

/** Finds and reads what {@code python -m android} wrote for the tests. */
public final class Fixtures {
    private Fixtures() {}

    /** Returns a path below the folder of fixtures. */
    public static Path path(String name) {
        Path path = Path.of(System.getProperty("pocketbert.fixtures", "")).resolve(name);
        if (!Files.exists(path)) {
            throw new IllegalStateException(path + " is missing: run make test-android, which writes the fixtures first.");
        }
        return path;
    }

    /** Returns the artefact folder of a tiny random model for a task. */
    public static Path phone(String task) {
        return path("phones/" + task);
    }

    /** Returns a model file as an engine reads it. */
    public static ModelSource source(Path file) throws IOException {
        return ModelSource.copyOf(file.getFileName().toString(), "digest", Files.readAllBytes(file));
    }

    /** Returns the objects of a file with one JSON object per line. */
    public static List<JsonObject> lines(Path file) throws IOException {
        List<JsonObject> rows = new ArrayList<>();
        for (String line : Files.readAllLines(file, StandardCharsets.UTF_8)) {
            rows.add(JsonParser.parseString(line).getAsJsonObject());
        }
        return rows;
    }

    /** Returns a flat array of numbers. */
    public static float[] floats(JsonArray array) {
        float[] out = new float[array.size()];
        for (int i = 0; i < out.length; i++) {
            out[i] = array.get(i).getAsFloat();
        }
        return out;
    }

    /** Returns a flat array of whole numbers. */
    public static long[] longs(JsonArray array) {
        long[] out = new long[array.size()];
        for (int i = 0; i < out.length; i++) {
            out[i] = array.get(i).getAsLong();
        }
        return out;
    }

    /** Returns the three inputs of BERT for rows of ids of one length; ids of 0 are padding. */
    public static Map<String, long[][]> inputs(long[]... rows) {
        long[][] mask = new long[rows.length][rows[0].length];
        for (int i = 0; i < rows.length; i++) {
            for (int j = 0; j < rows[i].length; j++) {
                mask[i][j] = rows[i][j] == 0 ? 0 : 1;
            }
        }
        return Map.of("input_ids", rows, "attention_mask", mask, "token_type_ids", new long[rows.length][rows[0].length]);
    }
}
