package org.pocketbert.engines.ort;

import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OnnxJavaType;
import ai.onnxruntime.OnnxValue;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.pocketbert.engines.EngineException;
import org.pocketbert.engines.EngineException.Reason;
import org.pocketbert.engines.ModelSource;
import org.pocketbert.engines.ResidentMemory;
import org.pocketbert.engines.Session;
import org.pocketbert.engines.SessionFacts;
import org.pocketbert.engines.SessionOptions;
import org.pocketbert.engines.Tensor;

/** One ONNX file, opened. */
final class OrtModel implements Session {
    private static final double NANOS_PER_MILLI = 1e6;

    private final OrtEnvironment environment;
    private final OrtSession session;
    private final String file;
    private final long memoryBefore;
    private SessionFacts facts;
    private boolean closed;

    private OrtModel(OrtEnvironment environment, OrtSession session, String file, long memoryBefore, SessionFacts facts) {
        this.environment = environment;
        this.session = session;
        this.file = file;
        this.memoryBefore = memoryBefore;
        this.facts = facts;
    }

    static OrtModel open(OrtEnvironment environment, ModelSource source, SessionOptions options) throws OrtException {
        long memory = ResidentMemory.bytes();
        long start = System.nanoTime();
        OrtCache cache = new OrtCache(environment, source, options);
        OrtSession session = cache.open();
        double load = (System.nanoTime() - start) / NANOS_PER_MILLI;
        SessionFacts facts = new SessionFacts(
                "ONNX Runtime " + environment.getVersion(),
                options.processor(),
                options.threads(),
                load,
                Double.NaN,
                grown(memory),
                cache.state(),
                List.copyOf(session.getInputNames()),
                List.of());
        return new OrtModel(environment, session, source.name(), memory, facts);
    }

    @Override
    public Map<String, Tensor> run(Map<String, long[][]> inputs) throws EngineException {
        if (closed) {
            throw new EngineException(Reason.OTHER, file + " was closed; open it again.");
        }
        Map<String, OnnxTensor> fed = new LinkedHashMap<>();
        try {
            for (String name : facts.inputs()) {
                long[][] rows = inputs.get(name);
                if (rows == null) {
                    throw new EngineException(
                            Reason.INPUTS, file + " needs the input " + name + "; given: " + inputs.keySet() + ".");
                }
                fed.put(name, tensor(name, rows));
            }
            long start = System.nanoTime();
            try (OrtSession.Result result = session.run(fed)) {
                if (Double.isNaN(facts.firstRunMillis())) {
                    facts = facts.afterFirstRun((System.nanoTime() - start) / NANOS_PER_MILLI, grown(memoryBefore));
                }
                return read(result);
            }
        } catch (OrtException e) {
            throw OrtFailures.of(file, e);
        } catch (OutOfMemoryError e) {
            throw OrtFailures.outOfMemory(file);
        } finally {
            fed.values().forEach(OnnxTensor::close);
        }
    }

    private OnnxTensor tensor(String name, long[][] rows) throws OrtException, EngineException {
        int length = rows.length == 0 ? 0 : rows[0].length;
        LongBuffer values = LongBuffer.allocate(rows.length * length);
        for (long[] row : rows) {
            if (row.length != length) {
                throw new EngineException(
                        Reason.INPUTS, name + " has rows of " + length + " and " + row.length + " numbers; pad them to one length.");
            }
            values.put(row);
        }
        values.rewind();
        return OnnxTensor.createTensor(environment, values, new long[] {rows.length, length});
    }

    private Map<String, Tensor> read(OrtSession.Result result) throws EngineException {
        Map<String, Tensor> outputs = new LinkedHashMap<>();
        for (Map.Entry<String, OnnxValue> entry : result) {
            if (!(entry.getValue() instanceof OnnxTensor tensor) || tensor.getInfo().type != OnnxJavaType.FLOAT) {
                throw new EngineException(
                        Reason.OTHER, "The output " + entry.getKey() + " of " + file + " is not float32; use another file.");
            }
            long[] shape = tensor.getInfo().getShape();
            int[] sizes = new int[shape.length];
            for (int i = 0; i < sizes.length; i++) {
                sizes[i] = (int) shape[i];
            }
            FloatBuffer buffer = tensor.getFloatBuffer();
            float[] values = new float[buffer.remaining()];
            buffer.get(values);
            outputs.put(entry.getKey(), new Tensor(values, sizes));
        }
        return outputs;
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
        if (closed) {
            return;
        }
        closed = true;
        try {
            session.close();
        } catch (OrtException e) {
            throw new IllegalStateException("ONNX Runtime could not release " + file + ": " + e.getMessage());
        }
    }
}
