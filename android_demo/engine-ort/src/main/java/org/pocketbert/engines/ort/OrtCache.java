package org.pocketbert.engines.ort;

import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import ai.onnxruntime.providers.NNAPIFlags;
import java.io.File;
import java.util.EnumSet;
import java.util.Locale;
import java.util.Map;
import org.pocketbert.engines.ModelSource;
import org.pocketbert.engines.Processor;
import org.pocketbert.engines.SessionOptions;

/**
 * Opens a session through a cache of the optimised graph.
 *
 * <p>The first start lets ONNX Runtime write its optimised graph (format {@code .ort}); later starts open that file and skip the
 * optimiser. The name holds the model's digest, the library's version and the CPU, because the graph fits no other. A cached file
 * that does not open is deleted, and the model is opened without it.
 */
final class OrtCache {
    private final OrtEnvironment environment;
    private final ModelSource source;
    private final SessionOptions options;
    private String state = "none";

    OrtCache(OrtEnvironment environment, ModelSource source, SessionOptions options) {
        this.environment = environment;
        this.source = source;
        this.options = options;
    }

    /** Returns {@code none}, {@code written} or {@code read}, after {@link #open()}. */
    String state() {
        return state;
    }

    OrtSession open() throws OrtException {
        File cached = file();
        if (cached != null && cached.isFile()) {
            try (OrtSession.SessionOptions settings = settings()) {
                settings.setOptimizationLevel(OrtSession.SessionOptions.OptLevel.NO_OPT);
                OrtSession session = environment.createSession(cached.getPath(), settings);
                state = "read";
                return session;
            } catch (OrtException e) {
                cached.delete(); // Half-written or from a broken disk; it is written anew below.
            }
        }
        try {
            return optimised(cached, true);
        } catch (OrtException e) {
            return optimised(cached, false); // ONNX Runtime 1.31 on x86: several products share an int8 weight (ALBERT).
        }
    }

    private OrtSession optimised(File cached, boolean precise) throws OrtException {
        File unfinished = cached == null ? null : new File(cached.getPath() + ".part");
        try (OrtSession.SessionOptions settings = settings()) {
            // Int8 products saturate on x86 without VNNI otherwise.
            settings.addConfigEntry("session.x64quantprecision", precise ? "1" : "0");
            if (unfinished != null) {
                settings.addConfigEntry("session.save_model_format", "ORT");
                settings.setOptimizedModelFilePath(unfinished.getPath());
            }
            OrtSession session = environment.createSession(source.content(), settings);
            if (unfinished != null && unfinished.renameTo(cached)) {
                state = "written";
            }
            return session;
        }
    }

    /** Returns where the optimised graph lies, or null where there is no cache: graphs for GPU and NPU are not written. */
    private File file() {
        File folder = options.cacheFolder();
        if (folder == null || options.processor() != Processor.CPU || !(folder.isDirectory() || folder.mkdirs())) {
            return null;
        }
        String cpu = System.getProperty("os.arch", "cpu").toLowerCase(Locale.ROOT);
        return new File(folder, source.sha256() + "-" + environment.getVersion() + "-" + cpu + ".ort");
    }

    private OrtSession.SessionOptions settings() throws OrtException {
        OrtSession.SessionOptions settings = new OrtSession.SessionOptions();
        settings.setIntraOpNumThreads(options.threads());
        settings.setInterOpNumThreads(1);
        settings.addConfigEntry("session.intra_op.allow_spinning", "0"); // A phone's battery matters more than microseconds.
        switch (options.processor()) {
            case CPU -> { }
            case GPU -> settings.addWebGPU(Map.of());
            case NPU -> {
                if (OrtEnvironment.getAvailableProviders().contains(ai.onnxruntime.OrtProvider.NNAPI)) {
                    settings.addNnapi(EnumSet.of(NNAPIFlags.CPU_DISABLED));
                } else {
                    settings.addQnn(Map.of("backend_path", "libQnnHtp.so"));
                }
            }
        }
        return settings;
    }
}
