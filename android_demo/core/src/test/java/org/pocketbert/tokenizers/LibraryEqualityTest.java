package org.pocketbert.tokenizers;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;
import static org.junit.Assume.assumeTrue;

import com.google.gson.stream.JsonReader;
import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.Reader;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.junit.runners.Parameterized;

/**
 * Compares ids, segment ids, places, words and windows with what the {@code tokenizers} library gave, on all texts of each kind.
 *
 * <p>The rows come from {@code python -m android}, in {@code tokens} of the folder of fixtures; without that folder the test is
 * skipped.
 */
@RunWith(Parameterized.class)
public final class LibraryEqualityTest {
    private static final int SHOWN = 5;

    private final File folder;

    /** Makes the test of one kind; null where there are no fixtures. */
    public LibraryEqualityTest(String kind) {
        folder = kind == null ? null : new File(root(), kind);
    }

    private static File root() {
        return new File(System.getProperty("pocketbert.fixtures", ""), "tokens");
    }

    /** Returns the names of the kinds, or one null. */
    @Parameterized.Parameters(name = "{0}")
    public static Collection<Object[]> kinds() {
        List<Object[]> out = new ArrayList<>();
        File[] folders = root().listFiles(File::isDirectory);
        for (File folder : folders == null ? new File[0] : folders) {
            out.add(new Object[] {folder.getName()});
        }
        out.sort((one, other) -> ((String) one[0]).compareTo((String) other[0]));
        if (out.isEmpty()) {
            out.add(new Object[] {null});
        }
        return out;
    }

    private static BufferedReader open(File file) throws IOException {
        return new BufferedReader(new InputStreamReader(new FileInputStream(file), StandardCharsets.UTF_8));
    }

    private static List<String> texts() throws IOException {
        List<String> out = new ArrayList<>();
        try (BufferedReader lines = open(new File(root(), "strings.jsonl"))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                JsonReader json = new JsonReader(new StringReader(line));
                json.setStrictness(com.google.gson.Strictness.LENIENT);
                out.add(json.nextString());
            }
        }
        return out;
    }

    /** Compares all rows of a kind. */
    @Test
    public void everyRowIsTheLibrarys() throws IOException {
        assumeTrue("no fixtures: set pocketbert.fixtures, make test-android does it", folder != null);
        List<String> texts = texts();
        Tokenizer tokenizer;
        try (Reader reader = open(new File(folder, "tokenizer.json"))) {
            tokenizer = Tokenizer.read(reader);
        }
        int rows = 0;
        List<String> differences = new ArrayList<>();
        try (BufferedReader lines = open(new File(folder, "rows.jsonl"))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                Expected row = new Expected(line);
                rows++;
                String wrong = row.difference(row.encoded(tokenizer, texts), texts);
                if (wrong != null) {
                    differences.add("row " + rows + ": " + wrong);
                }
            }
        }
        assertTrue("rows", rows > 20);
        System.out.println("tokenizers: " + folder.getName() + ": " + rows + " rows compared, " + differences.size() + " differ");
        assertEquals(String.join("\n", differences.subList(0, Math.min(SHOWN, differences.size()))), 0, differences.size());
    }

    /** One row of the fixtures. */
    private static final class Expected {
        private final List<Integer> numbers = new ArrayList<>();
        private final List<int[][]> encodings = new ArrayList<>();
        private final List<Boolean> truncated = new ArrayList<>();
        private int most = -1;
        private int stride = -1;
        private boolean keepsEnd;

        Expected(String line) throws IOException {
            JsonReader json = new JsonReader(new StringReader(line));
            json.beginObject();
            while (json.hasNext()) {
                switch (json.nextName()) {
                    case "texts" -> {
                        for (int number : numbers(json)) {
                            numbers.add(number);
                        }
                    }
                    case "most" -> most = json.nextInt();
                    case "stride" -> stride = json.nextInt();
                    case "left" -> keepsEnd = json.nextBoolean();
                    default -> readEncodings(json);
                }
            }
            json.endObject();
        }

        private void readEncodings(JsonReader json) throws IOException {
            json.beginArray();
            while (json.hasNext()) {
                json.beginArray();
                int[][] columns = new int[6][];
                for (int i = 0; i < columns.length; i++) {
                    columns[i] = numbers(json);
                }
                encodings.add(columns);
                truncated.add(json.nextBoolean());
                json.endArray();
            }
            json.endArray();
        }

        private static int[] numbers(JsonReader json) throws IOException {
            int[] out = new int[16];
            int used = 0;
            json.beginArray();
            while (json.hasNext()) {
                if (used == out.length) {
                    out = Arrays.copyOf(out, 2 * used);
                }
                out[used++] = json.nextInt();
            }
            json.endArray();
            return Arrays.copyOf(out, used);
        }

        List<Encoding> encoded(Tokenizer tokenizer, List<String> texts) {
            String first = texts.get(numbers.get(0));
            String second = numbers.size() > 1 ? texts.get(numbers.get(1)) : null;
            if (stride >= 0) {
                return tokenizer.windows(first, second, most, stride);
            }
            if (most >= 0) {
                Limits limits = keepsEnd ? Limits.keepingEnd(most) : Limits.of(most);
                return List.of(second == null ? tokenizer.encode(first, limits) : tokenizer.encode(first, second, limits));
            }
            return List.of(second == null ? tokenizer.encode(first) : tokenizer.encode(first, second));
        }

        String difference(List<Encoding> made, List<String> texts) {
            String of = " of " + escaped(texts.get(numbers.get(0))) + (numbers.size() > 1 ? " and " + escaped(texts.get(numbers.get(1))) : "")
                    + (most < 0 ? "" : " in " + most) + (keepsEnd ? ", from the left" : "");
            if (made.size() != encodings.size()) {
                return made.size() + " encodings instead of " + encodings.size() + of;
            }
            String[] names = {"ids", "segment ids", "starts", "ends", "words", "parts"};
            for (int i = 0; i < made.size(); i++) {
                Encoding one = made.get(i);
                int[][] columns = {one.ids(), one.typeIds(), one.starts(), one.ends(), one.words(), one.parts()};
                for (int k = 0; k < columns.length; k++) {
                    if (!Arrays.equals(columns[k], encodings.get(i)[k])) {
                        return names[k] + " " + Arrays.toString(columns[k]) + " instead of " + Arrays.toString(encodings.get(i)[k]) + of;
                    }
                }
                if (one.truncated() != truncated.get(i)) {
                    return "truncated " + one.truncated() + of;
                }
            }
            return null;
        }

        private static String escaped(String text) {
            StringBuilder out = new StringBuilder("'");
            text.codePoints().limit(80).forEach(code -> {
                if (code >= 0x20 && code < 0x7F) {
                    out.appendCodePoint(code);
                } else {
                    out.append("{").append(Integer.toHexString(code)).append("}");
                }
            });
            return out.append("'").toString();
        }
    }
}
