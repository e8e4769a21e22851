package org.pocketbert.answers;

import java.util.List;
import java.util.Map;
import org.pocketbert.artefacts.Task;
import org.pocketbert.engines.Tensor;
import org.pocketbert.text.Batch;

/** Reads what the outputs of a batch say of each row: one matrix per row, without its padding. */
public final class Readout {
    /** Name of the output of a file that computes the scores itself. */
    public static final String PROBABILITIES = "probabilities";

    private final Task task;
    private final int maskId;

    /**
     * Creates a reader.
     *
     * @param task decides which outputs and tokens matter
     * @param maskId id of the token for a hidden word, for fill-mask; -1 for none
     */
    public Readout(Task task, int maskId) {
        this.task = task;
        this.maskId = maskId;
    }

    /** Returns the outputs that the answer is made from. */
    public List<String> names(Map<String, Tensor> outputs) {
        return outputs.containsKey(PROBABILITIES) ? List.of(PROBABILITIES) : task.outputs();
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
        List<String> names = names(outputs);
        for (String name : names) {
            if (!outputs.containsKey(name)) {
                throw new AnswerException("The file gives " + outputs.keySet() + "; " + task.hubName() + " needs " + names
                        + ". It is a file of another task: pack the model again.");
            }
        }
        Matrix out = task.perToken() ? perToken(outputs, names, batch, row) : perText(outputs.get(names.get(0)), batch, row);
        if (!out.isFinite()) {
            throw new AnswerException("The engine answered numbers that are not finite. Choose another file or engine.");
        }
        return out;
    }

    private Matrix perText(Tensor tensor, Batch batch, int row) throws AnswerException {
        checkShape(tensor, batch, 2);
        float[] values = tensor.row(row);
        return new Matrix(values, 1, values.length);
    }

    private Matrix perToken(Map<String, Tensor> outputs, List<String> names, Batch batch, int row) throws AnswerException {
        int columns = 0;
        for (String name : names) {
            checkShape(outputs.get(name), batch, names.size() == 1 ? 3 : 2);
            columns += columns(outputs.get(name));
        }
        boolean[] read = read(batch, row);
        int count = 0;
        for (boolean one : read) {
            count += one ? 1 : 0;
        }
        float[] values = new float[count * columns];
        int to = 0;
        for (int token = 0; token < read.length; token++) {
            if (!read[token]) {
                continue;
            }
            for (String name : names) {
                int width = columns(outputs.get(name));
                int from = (row * read.length + token) * width;
                System.arraycopy(outputs.get(name).values(), from, values, to, width);
                to += width;
            }
        }
        return new Matrix(values, count, columns);
    }

    /** Tells which tokens are read: all but padding; of fill-mask the masked ones, where there are any. */
    private boolean[] read(Batch batch, int row) {
        boolean[] masked = new boolean[batch.length()];
        boolean[] all = new boolean[batch.length()];
        boolean any = false;
        for (int token = 0; token < all.length; token++) {
            all[token] = batch.mask()[row][token] == 1;
            masked[token] = all[token] && batch.ids()[row][token] == maskId;
            any |= masked[token];
        }
        return task == Task.FILL_MASK && any ? masked : all;
    }

    private static int columns(Tensor tensor) {
        return tensor.shape().length == 3 ? tensor.shape()[2] : 1;
    }

    private void checkShape(Tensor tensor, Batch batch, int axes) throws AnswerException {
        int[] shape = tensor.shape();
        boolean right = shape.length == axes && shape[0] == batch.ids().length;
        if (!right || (task.perToken() && shape[1] != batch.length())) {
            throw new AnswerException("The engine answered an output of shape " + java.util.Arrays.toString(shape)
                    + ", which is not one of " + task.hubName() + ". Choose another file or engine.");
        }
    }
}
