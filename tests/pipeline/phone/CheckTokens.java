import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.pocketbert.text.Batch;
import org.pocketbert.tokenizers.Encoding;
import org.pocketbert.tokenizers.Limits;
import org.pocketbert.tokenizers.Tokenizer;
import org.pocketbert.tokenizers.TokenizerException;

/** Prints what the packed sources make of the texts of each folder: CheckTokens MAX_LENGTH FOLDER..., texts.jsonl in each. */
public final class CheckTokens {
    public static void main(String[] arguments) throws IOException {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (int i = 1; i < arguments.length; i++) {
            print(new File(arguments[i]), Integer.parseInt(arguments[0]), out);
        }
        out.flush();
    }

    private static void print(File folder, int maxLength, PrintStream out) throws IOException {
        Tokenizer tokenizer;
        try (BufferedReader json = open(folder, "tokenizer.json")) {
            tokenizer = Tokenizer.read(json);
        } catch (TokenizerException error) {
            out.println("{\"refused\":true}");
            return;
        }
        TextInputs inputs = new TextInputs(new FileInputStream(new File(folder, "tokenizer.json")));
        try (BufferedReader lines = open(folder, "texts.jsonl")) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                JsonReader json = new JsonReader(new StringReader(line));
                json.beginArray();
                String first = json.nextString();
                String second = json.peek() == JsonToken.STRING ? json.nextString() : null;
                Limits limits = Limits.of(maxLength);
                Encoding made = second == null ? tokenizer.encode(first, limits) : tokenizer.encode(first, second, limits);
                Batch batch = inputs.of(first); // what README.md shows; of a pair it is the first text's
                out.println("{\"ids\":" + Arrays.toString(made.ids()) + ",\"type_ids\":" + Arrays.toString(made.typeIds())
                        + ",\"starts\":" + Arrays.toString(made.starts()) + ",\"ends\":" + Arrays.toString(made.ends())
                        + ",\"batch\":" + Arrays.toString(batch.ids()[0]) + "}");
            }
        }
    }

    private static BufferedReader open(File folder, String name) throws IOException {
        return new BufferedReader(new InputStreamReader(new FileInputStream(new File(folder, name)), StandardCharsets.UTF_8));
    }
}
