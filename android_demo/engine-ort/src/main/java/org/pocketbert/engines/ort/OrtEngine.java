package org.pocketbert.engines.ort;

import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtLoggingLevel;
import ai.onnxruntime.OrtProvider;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import org.pocketbert.engines.Engine;
import org.pocketbert.engines.EngineException;
import org.pocketbert.engines.ModelSource;
import org.pocketbert.engines.Processor;
import org.pocketbert.engines.Session;
import org.pocketbert.engines.SessionOptions;

/** Runs ONNX files with ONNX Runtime. Its telemetry is switched off before anything is opened. */
public final class OrtEngine implements Engine {
    @Override
    public String name() {
        return "ONNX Runtime";
    }

    @Override
    public String format() {
        return "onnx";
    }

    @Override
    public List<String> runtimes() {
        return List.of();
    }

    @Override
    public boolean available() {
        try {
            return environment() != null;
        } catch (LinkageError e) {
            return false; // UnsatisfiedLinkError the first time, NoClassDefFoundError later.
        }
    }

    @Override
    public String version() {
        return environment().getVersion();
    }

    /** Returns CPU, then GPU where the library has WebGPU, then NPU where it has NNAPI or Qualcomm's QNN. */
    @Override
    public List<Processor> processors() {
        EnumSet<OrtProvider> available = OrtEnvironment.getAvailableProviders();
        List<Processor> processors = new ArrayList<>(List.of(Processor.CPU));
        if (available.contains(OrtProvider.WEBGPU)) {
            processors.add(Processor.GPU);
        }
        if (available.contains(OrtProvider.NNAPI) || available.contains(OrtProvider.QNN)) {
            processors.add(Processor.NPU);
        }
        return List.copyOf(processors);
    }

    /** Returns the library's one environment, which the first call sets up to log errors only. */
    private static OrtEnvironment environment() {
        return OrtEnvironment.getEnvironment(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR);
    }

    @Override
    public Session open(ModelSource source, SessionOptions options) throws EngineException {
        if (!processors().contains(options.processor())) {
            throw new EngineException(
                    EngineException.Reason.PROCESSOR,
                    "ONNX Runtime " + version() + " has no " + options.processor() + " on this device; it has " + processors()
                            + ".");
        }
        if (!source.content().hasRemaining()) {
            throw OrtFailures.damaged(source.name(), "The file is empty.");
        }
        try {
            OrtEnvironment environment = environment();
            environment.setTelemetry(false);
            return OrtModel.open(environment, source, options);
        } catch (OrtException e) {
            throw OrtFailures.of(source.name(), e);
        } catch (OutOfMemoryError e) {
            throw OrtFailures.outOfMemory(source.name());
        }
    }
}
