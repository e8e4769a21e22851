package org.pocketbert.selftest;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.pocketbert.answers.Matrix;
import org.pocketbert.artefacts.ArtefactException;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.Fields;
import org.pocketbert.text.Input;

/**
 * Holds a text and the outputs that each file of the folder gave for it when it was proven.
 *
 * @param number its line in {@code golden.jsonl}, from 1
 * @param input the text, or two, without the folder's default prompt
 * @param outputs outputs of each file by path: the recorded places, row by row
 * @param tolerance largest difference from them that a right engine may show, by path
 * @param places rows of the outputs that are recorded; empty for all
 * @param columns columns that are recorded; empty for all
 */
public record GoldenRow(
        int number,
        Input input,
        Map<String, float[]> outputs,
        Map<String, Double> tolerance,
        int[] places,
        int[] columns) {
    /** Name of the file. */
    public static final String FILE_NAME = "golden.jsonl";

    private static final int MAX_PLACE = Integer.MAX_VALUE - 1;

    /**
     * Reads the rows that record outputs of a file.
     *
     * @param path the model file
     * @throws ArtefactException if the golden file is missing, not the listed one, or a row is wrong
     */
    public static List<GoldenRow> read(Artefacts artefacts, String path) throws ArtefactException {
        int[] number = {0};
        return JsonLines.read(artefacts, FILE_NAME, fields -> {
            number[0]++;
            return fields.fields("outputs").has(path) ? of(number[0], fields, path) : null;
        });
    }

    /**
     * Reads what the original model of a folder with several heads gave for each text, all columns of the recorded places.
     *
     * @throws ArtefactException if the golden file is missing, not the listed one, or a row is wrong
     */
    static List<Matrix> references(Artefacts artefacts) throws ArtefactException {
        int columns = artefacts.labels().size();
        return JsonLines.read(artefacts, FILE_NAME, fields -> {
            float[] values = fields.floats("reference");
            int rows = Math.max(1, fields.wholes("places", 0, MAX_PLACE).length);
            if (values.length != rows * columns) {
                throw new Fields.WrongField("reference has " + values.length + " numbers for " + columns + " labels.");
            }
            return new Matrix(values, rows, columns);
        });
    }

    private static GoldenRow of(int number, Fields fields, String path) {
        Map<String, float[]> outputs = new HashMap<>();
        outputs.put(path, fields.fields("outputs").floats(path));
        double allowed = fields.fields("tolerance").number(path, 0, Double.MAX_VALUE);
        return new GoldenRow(
                number,
                input(fields),
                outputs,
                Map.of(path, allowed),
                fields.wholes("places", 0, MAX_PLACE),
                fields.wholes("columns", 0, MAX_PLACE));
    }

    static Input input(Fields fields) {
        if (!fields.isList("text")) {
            return Input.of(fields.anyText("text"));
        }
        List<String> texts = fields.texts("text");
        if (texts.size() != 2) {
            throw new Fields.WrongField("text is neither one text nor two.");
        }
        return new Input(texts.get(0), texts.get(1));
    }

    /**
     * Returns the largest difference of an answer from the recorded one; NaN where the answer is too small or not a number.
     *
     * @param path the model file
     * @param answer its outputs for this row
     * @param shares what differences of each recorded column are divided by; empty for 1
     */
    public double difference(String path, Matrix answer, double[] shares) {
        float[] expected = outputs.get(path);
        int rows = places.length == 0 ? answer.rows() : places.length;
        int width = columns.length == 0 ? answer.columns() : columns.length;
        if (rows * width != expected.length) {
            return Double.NaN;
        }
        double worst = 0;
        for (int i = 0; i < rows; i++) {
            int row = places.length == 0 ? i : places[i];
            for (int j = 0; j < width; j++) {
                int column = columns.length == 0 ? j : columns[j];
                if (row >= answer.rows() || column >= answer.columns()) {
                    return Double.NaN;
                }
                double share = shares.length == 0 ? 1 : j < shares.length ? shares[j] : Double.NaN;
                double difference = Math.abs((double) answer.at(row, column) - expected[i * width + j]) / share;
                worst = Double.isNaN(difference) ? Double.NaN : Math.max(worst, difference); // max keeps a NaN
            }
        }
        return worst;
    }
}
