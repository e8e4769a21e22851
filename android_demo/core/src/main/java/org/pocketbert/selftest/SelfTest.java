package org.pocketbert.selftest;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import org.pocketbert.answers.AnswerException;
import org.pocketbert.answers.Predictor;
import org.pocketbert.artefacts.ArtefactException;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.engines.EngineException;
import org.pocketbert.selftest.SelfTestException.Reason;
import org.pocketbert.text.Input;
import org.pocketbert.text.TextEncoder;
import org.pocketbert.text.TextException;
import org.pocketbert.tokenizers.Encoding;

/**
 * Compares a tokenizer and an engine with recorded rows before they are believed: old runtimes accept some files and compute them
 * wrongly without an error.
 */
public final class SelfTest {
    /** Rows that are run at the start of an app: a wrong kernel can be right on one text. */
    public static final int ROWS = 4;

    private static final int LEAST_ROWS = 4;

    private final Artefacts artefacts;
    private final ModelFile model;

    /** Creates a test of one model file of a folder. */
    public SelfTest(Artefacts artefacts, ModelFile model) {
        this.artefacts = artefacts;
        this.model = model;
    }

    /**
     * Holds what a passed test found.
     *
     * @param rows rows that were compared
     * @param largest largest difference from the recorded outputs, of several heads divided by the head's share of the tolerance
     * @param tolerance largest difference that is allowed
     */
    public record Report(int rows, double largest, double tolerance) {}

    /**
     * Compares the tokens of all recorded texts.
     *
     * @return number of texts
     * @throws SelfTestException if a text gives other tokens
     * @throws ArtefactException if the recorded rows cannot be read
     */
    public int checkTokenizer(TextEncoder encoder) throws SelfTestException, ArtefactException {
        List<TokenRow> rows = enough(TokenRow.read(artefacts), TokenRow.FILE_NAME);
        int longest = artefacts.processing().maxLength();
        for (TokenRow row : rows) {
            String found;
            try {
                Encoding encoding = encoder.encode(row.input(), longest);
                if (row.equals(encoding)) {
                    continue;
                }
                found = encoding.length() + " tokens instead of the recorded ones";
            } catch (TextException e) {
                found = e.getMessage();
            }
            throw new SelfTestException(
                    Reason.TOKENIZER,
                    "tokenizer.json: recorded text " + row.number() + " (" + shown(row.input()) + ") gives " + found
                            + ". It belongs to another model, or this app cannot read its kind: pack the model again.");
        }
        return rows.size();
    }

    /**
     * Runs the shortest row of each of {@link #ROWS} stretches of the recorded rows.
     *
     * @throws SelfTestException if an output is outside its tolerance
     * @throws ArtefactException if the recorded rows cannot be read
     * @throws EngineException if the engine fails
     */
    public Report check(Predictor predictor, String engine) throws SelfTestException, ArtefactException, EngineException {
        return compare(predictor, engine, spreadOut(recorded()));
    }

    /**
     * Runs all recorded rows.
     *
     * @throws SelfTestException if an output is outside its tolerance
     * @throws ArtefactException if the recorded rows cannot be read
     * @throws EngineException if the engine fails
     */
    public Report checkAll(Predictor predictor, String engine) throws SelfTestException, ArtefactException, EngineException {
        return compare(predictor, engine, recorded());
    }

    private List<GoldenRow> recorded() throws SelfTestException, ArtefactException {
        return enough(GoldenRow.read(artefacts, model.path()), GoldenRow.FILE_NAME);
    }

    private Report compare(Predictor predictor, String engine, List<GoldenRow> rows)
            throws SelfTestException, ArtefactException, EngineException {
        double largest = 0;
        double tolerance = 0;
        double[] shares = ToleranceShares.read(artefacts);
        for (GoldenRow row : rows) {
            double difference = difference(predictor, row, shares);
            double allowed = row.tolerance().get(model.path());
            if (!(difference <= allowed)) { // true for NaN too
                throw new SelfTestException(
                        Reason.ENGINE,
                        String.format(
                                Locale.ROOT,
                                "%s: %s computes this file wrongly: recorded row %d differs by %.3g, allowed %.3g. %s",
                                model.path(), engine, row.number(), difference, allowed, fix()));
            }
            largest = Math.max(largest, difference);
            tolerance = Math.max(tolerance, allowed);
        }
        return new Report(rows.size(), largest, tolerance);
    }

    private double difference(Predictor predictor, GoldenRow row, double[] shares) throws EngineException {
        try {
            int longest = artefacts.processing().maxLength();
            // a pair is one row here, also for questions: recorded rows fit; they are recorded without the prompt
            Input input = row.input().behind(artefacts.processing().prompt());
            Encoding encoding = predictor.encoder().encode(input, Math.min(longest, predictor.maxLength()));
            return row.difference(model.path(), predictor.run(encoding), shares);
        } catch (AnswerException | TextException e) {
            return Double.NaN;
        }
    }

    private String fix() {
        for (ModelFile other : artefacts.models()) {
            boolean sameKind = other.format().equals(model.format()) && other.scheme().equals(model.scheme());
            if (sameKind && model.runtime().isEmpty() && !other.runtime().isEmpty() && other.client().isEmpty()) {
                return "Choose " + other.path() + ", which is made for older engines, or a newer engine.";
            }
        }
        return model.format().equals("tflite")
                ? "Choose another file, or LiteRT 2.3 or newer as the engine."
                : "Choose another file or another version of the engine.";
    }

    private static List<GoldenRow> spreadOut(List<GoldenRow> rows) {
        int parts = Math.min(ROWS, rows.size());
        List<GoldenRow> out = new ArrayList<>();
        for (int i = 0; i < parts; i++) {
            List<GoldenRow> stretch = rows.subList(rows.size() * i / parts, rows.size() * (i + 1) / parts);
            out.add(java.util.Collections.min(stretch, Comparator.comparingInt(SelfTest::letters)));
        }
        out.sort(Comparator.comparingInt(SelfTest::letters));
        return out;
    }

    private static int letters(GoldenRow row) {
        Input input = row.input();
        return input.first().length() + (input.second() == null ? 0 : input.second().length());
    }

    private static String shown(Input input) {
        String text = input.first();
        return "'" + (text.length() > 40 ? text.substring(0, text.offsetByCodePoints(0, 20)) + "…" : text) + "'";
    }

    private static <T> List<T> enough(List<T> rows, String name) throws SelfTestException {
        if (rows.size() < LEAST_ROWS) {
            throw new SelfTestException(
                    Reason.TOO_FEW_ROWS,
                    name + ": " + rows.size() + " recorded rows of this file; at least " + LEAST_ROWS
                            + " are needed to check it. Pack the model again.");
        }
        return rows;
    }
}
