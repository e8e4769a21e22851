package org.pocketbert.engines.tflite;

import java.util.ArrayList;
import java.util.List;
import org.pocketbert.engines.Engine;
import org.pocketbert.engines.EngineException;
import org.pocketbert.engines.EngineException.Reason;
import org.pocketbert.engines.ModelSource;
import org.pocketbert.engines.Processor;
import org.pocketbert.engines.Session;
import org.pocketbert.engines.SessionOptions;
import org.tensorflow.lite.TensorFlowLite;

/**
 * Runs TFLite files with TensorFlow Lite 2.16, whose native library is a part of the app.
 *
 * <p>TFLite up to 2.16 computes the default int8 file of an artefact folder wrongly and reports no error. Files for the runtime
 * {@code tflite216} are right; a self-test with golden rows must pass before answers are shown.
 */
public final class TfliteEngine implements Engine {
    /** Since this Android API level NNAPI is a part of the system. */
    private static final int FIRST_NNAPI = 27;

    private final int apiLevel;

    /**
     * Creates the engine.
     *
     * @param apiLevel Android's {@code Build.VERSION.SDK_INT}; 0 where this is not Android, so that NNAPI is not offered
     */
    public TfliteEngine(int apiLevel) {
        this.apiLevel = apiLevel;
    }

    @Override
    public String name() {
        return "TensorFlow Lite";
    }

    @Override
    public String format() {
        return "tflite";
    }

    @Override
    public List<String> runtimes() {
        return List.of("tflite216");
    }

    @Override
    public boolean available() {
        try {
            TensorFlowLite.init();
            return true;
        } catch (LinkageError e) {
            return false;
        }
    }

    @Override
    public String version() {
        return TensorFlowLite.runtimeVersion();
    }

    /** Returns CPU, then GPU where the app has the library tensorflow-lite-gpu, then NPU where the system has NNAPI. */
    @Override
    public List<Processor> processors() {
        List<Processor> processors = new ArrayList<>(List.of(Processor.CPU));
        if (apiLevel > 0 && TfliteDelegates.gpuClass() != null) {
            processors.add(Processor.GPU);
        }
        if (apiLevel >= FIRST_NNAPI) {
            processors.add(Processor.NPU);
        }
        return List.copyOf(processors);
    }

    @Override
    public Session open(ModelSource source, SessionOptions options) throws EngineException {
        if (!processors().contains(options.processor())) {
            throw new EngineException(
                    Reason.PROCESSOR,
                    "TensorFlow Lite has no " + options.processor() + " on this device; it has " + processors() + ".");
        }
        if (!available()) {
            throw new EngineException(Reason.OTHER, "This app has no native library of TensorFlow Lite for this CPU.");
        }
        try {
            return TfliteModel.open(source, options);
        } catch (IllegalArgumentException | IllegalStateException | UnsupportedOperationException e) {
            throw TfliteFailures.of(source.name(), e);
        } catch (OutOfMemoryError e) {
            throw TfliteFailures.outOfMemory(source.name());
        }
    }
}
