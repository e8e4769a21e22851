package org.pocketbert.answers;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.pocketbert.artefacts.Task;
import org.pocketbert.engines.EngineException;
import org.pocketbert.engines.Processor;
import org.pocketbert.engines.Session;
import org.pocketbert.engines.SessionFacts;
import org.pocketbert.engines.Tensor;

/** An engine without a model: a function of the ids answers, and tokens that nobody reads get a number that would show. */
public final class FakeSession implements Session {
    private static final float UNREAD = 99;

    /** Answers one row of real ids. */
    public interface Answers {
        /** Returns [tokens that are read or 1, columns]. */
        Matrix of(long[] ids);
    }

    private final Task task;
    private final int maskId;
    private final List<Integer> lengths;
    private final Answers answers;
    /** Lengths of the batches that were run. */
    public final List<Integer> ran = new java.util.ArrayList<>();

    /** Creates a session. */
    public FakeSession(Task task, int maskId, List<Integer> lengths, Answers answers) {
        this.task = task;
        this.maskId = maskId;
        this.lengths = lengths;
        this.answers = answers;
    }

    @Override
    public Map<String, Tensor> run(Map<String, long[][]> inputs) throws EngineException {
        long[] ids = inputs.get("input_ids")[0];
        long[] mask = inputs.get("attention_mask")[0];
        ran.add(ids.length);
        if (!lengths.isEmpty() && !lengths.contains(ids.length)) {
            throw new EngineException(EngineException.Reason.INPUTS, "length " + ids.length);
        }
        long[] real = new long[ids.length];
        int count = 0;
        for (int i = 0; i < ids.length; i++) {
            if (mask[i] == 1) {
                real[count++] = ids[i];
            }
        }
        Matrix matrix = answers.of(java.util.Arrays.copyOf(real, count));
        return task.perToken() ? perToken(matrix, ids, mask) : Map.of(
                task.outputs().get(0), new Tensor(matrix.values(), new int[] {1, matrix.columns()}));
    }

    private Map<String, Tensor> perToken(Matrix matrix, long[] ids, long[] mask) {
        int width = task == Task.QUESTION_ANSWERING ? 1 : matrix.columns();
        boolean anyMask = false;
        for (long id : ids) {
            anyMask |= task == Task.FILL_MASK && id == maskId;
        }
        Map<String, Tensor> out = new HashMap<>();
        for (int output = 0; output < task.outputs().size(); output++) {
            float[] values = new float[ids.length * width];
            java.util.Arrays.fill(values, UNREAD);
            int row = 0;
            for (int i = 0; i < ids.length; i++) {
                if (mask[i] == 1 && (!anyMask || ids[i] == maskId)) {
                    for (int j = 0; j < width; j++) {
                        values[i * width + j] = matrix.at(row, j + output);
                    }
                    row++;
                }
            }
            int[] shape = task.outputs().size() > 1 ? new int[] {1, ids.length} : new int[] {1, ids.length, width};
            out.put(task.outputs().get(output), new Tensor(values, shape));
        }
        return out;
    }

    @Override
    public SessionFacts facts() {
        return new SessionFacts(
                "Fake 1.0", Processor.CPU, 1, 1, 1, -1, "none", List.of("input_ids", "attention_mask"), lengths);
    }

    @Override
    public void close() {
        // nothing is held
    }
}
