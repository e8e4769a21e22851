import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Base64;
import org.pocketbert.tokenizers.Encoding;
import org.pocketbert.tokenizers.Limits;
import org.pocketbert.tokenizers.Tokenizer;

/**
 * Prints ids and segment ids of texts: AskTokenizer TOKENIZER_JSON MAX_LENGTH right|left. Each line of stdin is a text in Base64, or two
 * with a blank between them.
 */
public final class AskTokenizer {
    private AskTokenizer() {}

    /** Answers every line of stdin with one line. */
    public static void main(String[] arguments) throws IOException {
        int longest = Integer.parseInt(arguments[1]);
        Limits limits = arguments[2].equals("left") ? Limits.keepingEnd(longest) : Limits.of(longest);
        Tokenizer tokenizer;
        try (Reader json = Files.newBufferedReader(Path.of(arguments[0]), StandardCharsets.UTF_8)) {
            tokenizer = Tokenizer.read(json);
        }
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ", -1);
            String first = text(parts[0]);
            Encoding made = parts.length == 1 ? tokenizer.encode(first, limits) : tokenizer.encode(first, text(parts[1]), limits);
            out.println("[" + Arrays.toString(made.ids()) + ", " + Arrays.toString(made.typeIds()) + "]");
        }
        out.flush();
    }

    private static String text(String base64) {
        return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
    }
}
