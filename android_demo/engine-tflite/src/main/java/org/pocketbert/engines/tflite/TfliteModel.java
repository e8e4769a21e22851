package org.pocketbert.engines.tflite;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.pocketbert.engines.EngineException;
import org.pocketbert.engines.EngineException.Reason;
import org.pocketbert.engines.ModelSource;
import org.pocketbert.engines.ResidentMemory;
import org.pocketbert.engines.Session;
import org.pocketbert.engines.SessionFacts;
import org.pocketbert.engines.SessionOptions;
import org.pocketbert.engines.Tensor;
import org.tensorflow.lite.Interpreter;

/** One TFLite file, opened: one signature per length, each with int32 inputs of shape [1, length]. */
final class TfliteModel implements Session {
    private static final double NANOS_PER_MILLI = 1e6;

    private final Interpreter interpreter;
    private final TfliteDelegates delegates;
    private final String file;
    private final Map<Integer, String> signatures = new TreeMap<>();
    private final long memoryBefore;
    private SessionFacts facts;
    private boolean closed;

    private TfliteModel(Interpreter interpreter, TfliteDelegates delegates, String file, long memoryBefore) {
        this.interpreter = interpreter;
        this.delegates = delegates;
        this.file = file;
        this.memoryBefore = memoryBefore;
    }

    static TfliteModel open(ModelSource source, SessionOptions options) throws EngineException {
        long memory = ResidentMemory.bytes();
        long start = System.nanoTime();
        TfliteDelegates delegates = new TfliteDelegates(source, options);
        Interpreter interpreter = null;
        TfliteModel model = null;
        try {
            interpreter = new Interpreter(source.content(), delegates.options());
            model = new TfliteModel(interpreter, delegates, source.name(), memory);
            String[] inputs = model.readSignatures();
            model.facts = new SessionFacts(
                    "TensorFlow Lite " + org.tensorflow.lite.TensorFlowLite.runtimeVersion(),
                    options.processor(),
                    options.threads(),
                    (System.nanoTime() - start) / NANOS_PER_MILLI,
                    Double.NaN,
                    grown(memory),
                    delegates.cache(),
                    List.of(inputs),
                    List.copyOf(model.signatures.keySet()));
            return model;
        } finally {
            if (model == null || model.facts == null) {
                if (interpreter != null) {
                    interpreter.close();
                }
                delegates.close();
            }
        }
    }

    /** Fills in the lengths and returns the names of the inputs, which all signatures share. */
    private String[] readSignatures() throws EngineException {
        String[] inputs = {};
        for (String key : interpreter.getSignatureKeys()) {
            inputs = interpreter.getSignatureInputs(key);
            for (String name : inputs) {
                int[] shape = interpreter.getInputTensorFromSignature(name, key).shape();
                if (shape.length != 2 || shape[0] != 1) {
                    throw new EngineException(
                            Reason.INPUTS,
                            file + " has an input " + name + " of shape " + Arrays.toString(shape)
                                    + "; this engine runs inputs of shape [1, length].");
                }
                signatures.put(shape[1], key);
            }
        }
        if (signatures.isEmpty()) {
            throw new EngineException(Reason.INPUTS, file + " has no signature; use a file of the folder tflite/.");
        }
        Arrays.sort(inputs);
        return inputs;
    }

    @Override
    public Map<String, Tensor> run(Map<String, long[][]> inputs) throws EngineException {
        if (closed) {
            throw new EngineException(Reason.OTHER, file + " was closed; open it again.");
        }
        int batch = 0;
        for (String name : facts.inputs()) {
            long[][] rows = inputs.get(name);
            if (rows == null) {
                throw new EngineException(Reason.INPUTS, file + " needs the input " + name + "; given: " + inputs.keySet() + ".");
            }
            batch = rows.length;
        }
        try {
            Map<String, Tensor> outputs = new LinkedHashMap<>();
            for (int row = 0; row < batch; row++) {
                for (Map.Entry<String, Tensor> one : runRow(inputs, row).entrySet()) {
                    outputs.merge(one.getKey(), one.getValue(), TfliteModel::stacked);
                }
            }
            return outputs;
        } catch (IllegalArgumentException | IllegalStateException e) {
            throw TfliteFailures.of(file, e);
        } catch (OutOfMemoryError e) {
            throw TfliteFailures.outOfMemory(file);
        }
    }

    private Map<String, Tensor> runRow(Map<String, long[][]> inputs, int row) throws EngineException {
        int length = inputs.get(facts.inputs().get(0))[row].length;
        String key = signatures.get(length);
        if (key == null) {
            throw new EngineException(
                    Reason.INPUTS, file + " takes " + facts.lengths() + " tokens, not " + length + "; pad the ids to one of these.");
        }
        Map<String, Object> fed = new LinkedHashMap<>();
        for (String name : facts.inputs()) {
            fed.put(name, new int[][] {narrowed(name, inputs.get(name)[row], length)});
        }
        Map<String, Object> buffers = new LinkedHashMap<>();
        for (String name : interpreter.getSignatureOutputs(key)) {
            int bytes = interpreter.getOutputTensorFromSignature(name, key).numBytes();
            buffers.put(name, ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder()));
        }
        long start = System.nanoTime();
        interpreter.runSignature(fed, buffers, key);
        if (Double.isNaN(facts.firstRunMillis())) {
            facts = facts.afterFirstRun((System.nanoTime() - start) / NANOS_PER_MILLI, grown(memoryBefore));
        }
        Map<String, Tensor> outputs = new LinkedHashMap<>();
        for (Map.Entry<String, Object> entry : buffers.entrySet()) {
            outputs.put(entry.getKey(), read(entry.getKey(), key, (ByteBuffer) entry.getValue()));
        }
        return outputs;
    }

    private int[] narrowed(String name, long[] row, int length) throws EngineException {
        if (row.length != length) {
            throw new EngineException(
                    Reason.INPUTS, name + " has " + row.length + " numbers where another input has " + length + "; pad them alike.");
        }
        int[] out = new int[length];
        for (int i = 0; i < length; i++) {
            out[i] = Math.toIntExact(row[i]);
        }
        return out;
    }

    /** Reads an output as floats; integers of static int8 and int16 files are scaled as the file says. */
    private Tensor read(String name, String key, ByteBuffer buffer) throws EngineException {
        org.tensorflow.lite.Tensor output = interpreter.getOutputTensorFromSignature(name, key);
        buffer.rewind();
        float[] values = new float[output.numElements()];
        float scale = output.quantizationParams().getScale();
        int zero = output.quantizationParams().getZeroPoint();
        for (int i = 0; i < values.length; i++) {
            values[i] = switch (output.dataType()) {
                case FLOAT32 -> buffer.getFloat();
                case INT8 -> scale * (buffer.get() - zero);
                case INT16 -> scale * (buffer.getShort() - zero);
                default -> throw new EngineException(
                        Reason.OTHER,
                        "The output " + name + " of " + file + " is " + output.dataType() + ", which this app does not read.");
            };
        }
        return new Tensor(values, output.shape());
    }

    /** Joins the rows of two outputs along the first axis. */
    private static Tensor stacked(Tensor first, Tensor second) {
        float[] values = Arrays.copyOf(first.values(), first.values().length + second.values().length);
        System.arraycopy(second.values(), 0, values, first.values().length, second.values().length);
        int[] shape = first.shape().clone();
        shape[0] += second.shape()[0];
        return new Tensor(values, shape);
    }

    private static long grown(long before) {
        long now = ResidentMemory.bytes();
        return before < 0 || now < 0 ? -1 : Math.max(now - before, 0);
    }

    @Override
    public SessionFacts facts() {
        return facts;
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            interpreter.close();
            delegates.close();
        }
    }
}
