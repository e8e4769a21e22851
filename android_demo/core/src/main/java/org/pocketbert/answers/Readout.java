package org.pocketbert.answers;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.pocketbert.artefacts.NamedHead;
import org.pocketbert.artefacts.Task;
import org.pocketbert.engines.Tensor;
import org.pocketbert.text.Batch;

/**
 * Reads what the outputs of a batch say of each row: one matrix per row, without its padding. The columns of several heads stand
 * side by side; where one of them labels tokens, those on whole texts have the same numbers at each token.
 */
public final class Readout {
    /** Name of the output of a file that computes the scores itself. */
    public static final String PROBABILITIES = "probabilities";

    private final List<NamedHead> heads;
    private final int maskId;

    /**
     * Creates a reader.
     *
     * @param heads decide which outputs and tokens matter
     * @param maskId id of the token for a hidden word, for fill-mask; -1 for none
     */
    public Readout(List<NamedHead> heads, int maskId) {
        this.heads = heads;
        this.maskId = maskId;
    }

    /** Holds one output of a batch. */
    private record Part(float[] values, int width, boolean perToken) {}

    /** Returns whether the file computes the scores itself, so that its outputs are probabilities. */
    public boolean isScored(Map<String, Tensor> outputs) {
        return names(heads.get(0), outputs).contains(PROBABILITIES);
    }

    private static List<String> names(NamedHead head, Map<String, Tensor> outputs) {
        return head.name().isEmpty() && outputs.containsKey(PROBABILITIES) ? List.of(PROBABILITIES) : head.outputs();
    }

    /**
     * Reads one row of a batch.
     *
     * @param outputs outputs by name: [rows, columns], [rows, length] or [rows, length, columns]
     * @param batch what was fed
     * @param row which row
     * @throws AnswerException if an output is missing, has another shape, or holds a number that is not finite
     */
    public Matrix matrix(Map<String, Tensor> outputs, Batch batch, int row) throws AnswerException {
        List<Part> parts = new ArrayList<>();
        for (NamedHead head : heads) {
            parts.addAll(parts(head, outputs, batch));
        }
        int[] tokens = parts.stream().anyMatch(Part::perToken) ? tokens(batch, row) : new int[1];
        int columns = parts.stream().mapToInt(Part::width).sum();
        float[] values = new float[tokens.length * columns];
        int to = 0;
        for (int token : tokens) {
            for (Part part : parts) {
                int place = part.perToken() ? row * batch.length() + token : row;
                System.arraycopy(part.values(), place * part.width(), values, to, part.width());
                to += part.width();
            }
        }
        Matrix out = new Matrix(values, tokens.length, columns);
        if (!out.isFinite()) {
            throw new AnswerException("The engine answered numbers that are not finite. Choose another file or engine.");
        }
        return out;
    }

    /** Returns the outputs of one head; their names, shapes and number of columns are checked. */
    private static List<Part> parts(NamedHead head, Map<String, Tensor> outputs, Batch batch) throws AnswerException {
        List<String> names = names(head, outputs);
        if (!outputs.keySet().containsAll(names)) {
            throw new AnswerException("The file gives " + outputs.keySet() + "; " + head.task().hubName() + " needs " + names
                    + ". It is a file of another task: pack the model again.");
        }
        List<Part> parts = new ArrayList<>();
        boolean perToken = head.task().perToken();
        int columns = 0;
        for (String name : names) {
            int[] shape = outputs.get(name).shape();
            boolean right = shape.length == (perToken && names.size() == 1 ? 3 : 2) && shape[0] == batch.ids().length;
            if (!right || (perToken && shape[1] != batch.length())) {
                throw new AnswerException("The engine answered an output of shape " + java.util.Arrays.toString(shape)
                        + ", which is not one of " + head.task().hubName() + ". Choose another file or engine.");
            }
            int width = perToken && shape.length == 2 ? 1 : shape[shape.length - 1];
            parts.add(new Part(outputs.get(name).values(), width, perToken));
            columns += width;
        }
        if (head.width() >= 0 && columns != head.width()) {
            throw new AnswerException("The file answers " + columns + " numbers" + (head.name().isEmpty() ? "" : " of " + head.name())
                    + ", the folder lists " + head.width() + ". Pack the model again.");
        }
        return parts;
    }

    /** Returns the tokens that are read: all but padding; of fill-mask the masked ones, where there are any. */
    private int[] tokens(Batch batch, int row) {
        List<Integer> all = new ArrayList<>();
        List<Integer> masked = new ArrayList<>();
        for (int token = 0; token < batch.length(); token++) {
            if (batch.mask()[row][token] == 1) {
                all.add(token);
                if (batch.ids()[row][token] == maskId) {
                    masked.add(token);
                }
            }
        }
        boolean fills = heads.get(0).task() == Task.FILL_MASK && !masked.isEmpty();
        return (fills ? masked : all).stream().mapToInt(Integer::intValue).toArray();
    }
}
