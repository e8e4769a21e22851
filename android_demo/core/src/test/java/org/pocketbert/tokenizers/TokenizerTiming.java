package org.pocketbert.tokenizers;

import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.Reader;
import java.nio.charset.StandardCharsets;

/**
 * Measures how long a tokenizer.json takes to load and how many characters it reads in a second; a program for people, no test.
 *
 * <p>Run as {@code java -cp ... org.pocketbert.tokenizers.TokenizerTiming FILE...}; figures are of the machine it runs on.
 */
public final class TokenizerTiming {
    private static final String SENTENCE = "The quick brown fox jumps over the lazy dog, naïve café 48% of the time. ";
    private static final int CHARACTERS = 100_000;
    private static final int REPEATS = 9;

    private TokenizerTiming() {}

    /** Prints a line for each file. */
    public static void main(String[] files) throws IOException {
        String text = SENTENCE.repeat(CHARACTERS / SENTENCE.length() + 1).substring(0, CHARACTERS);
        String word = "x".repeat(CHARACTERS);
        for (String file : files) {
            double best = Double.POSITIVE_INFINITY;
            Tokenizer tokenizer = null;
            for (int i = 0; i < REPEATS; i++) {
                long start = System.nanoTime();
                try (Reader reader = new BufferedReader(new InputStreamReader(new FileInputStream(file), StandardCharsets.UTF_8))) {
                    tokenizer = Tokenizer.read(reader);
                }
                double taken = (System.nanoTime() - start) / 1e6;
                if (i == 0) {
                    System.out.printf("%s: first load %.0f ms, ", file, taken);
                }
                best = Math.min(best, taken);
            }
            System.out.printf(
                    "best %.0f ms; text %.2f, one word %.2f million characters/s; a short text %.1f us%n", best,
                    CHARACTERS / 1e6 / seconds(tokenizer, text), CHARACTERS / 1e6 / seconds(tokenizer, word),
                    1e6 * shortText(tokenizer));
        }
    }

    private static double seconds(Tokenizer tokenizer, String text) {
        double best = Double.POSITIVE_INFINITY;
        for (int i = 0; i < REPEATS; i++) {
            long start = System.nanoTime();
            tokenizer.encode(text);
            best = Math.min(best, (System.nanoTime() - start) / 1e9);
        }
        return best;
    }

    private static double shortText(Tokenizer tokenizer) {
        double best = Double.POSITIVE_INFINITY;
        for (int i = 0; i < 200; i++) {
            best = Math.min(best, seconds(tokenizer, SENTENCE));
        }
        return best;
    }
}
