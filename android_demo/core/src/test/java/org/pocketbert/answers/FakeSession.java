package org.pocketbert.answers;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.pocketbert.artefacts.NamedHead;
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

    private final List<NamedHead> heads;
    private final int maskId;
    private final List<Integer> lengths;
    private final Answers answers;
    /** Lengths of the batches that were run. */
    public final List<Integer> ran = new java.util.ArrayList<>();

    /** Creates a session. */
    public FakeSession(List<NamedHead> heads, int maskId, List<Integer> lengths, Answers answers) {
        this.heads = heads;
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
        Map<String, Tensor> out = new HashMap<>();
        for (NamedHead head : heads) {
            for (int output = 0; output < head.outputs().size(); output++) {
                Matrix own = heads.size() == 1 ? matrix : matrix.columns(head.start(), head.width());
                boolean joins = head.outputs().size() == 1; // start and end are outputs of their own
                out.put(head.outputs().get(output), tensor(head.task(), joins ? own : own.columns(output, 1), joins, ids, mask));
            }
        }
        return out;
    }

    private Tensor tensor(Task task, Matrix matrix, boolean joins, long[] ids, long[] mask) {
        int width = matrix.columns();
        if (!task.perToken()) {
            return new Tensor(matrix.row(0), new int[] {1, width});
        }
        boolean anyMask = false;
        for (long id : ids) {
            anyMask |= task == Task.FILL_MASK && id == maskId;
        }
        float[] values = new float[ids.length * width];
        java.util.Arrays.fill(values, UNREAD);
        int row = 0;
        for (int i = 0; i < ids.length; i++) {
            if (mask[i] == 1 && (!anyMask || ids[i] == maskId)) {
                System.arraycopy(matrix.row(row++), 0, values, i * width, width);
            }
        }
        return new Tensor(values, joins ? new int[] {1, ids.length, width} : new int[] {1, ids.length});
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
