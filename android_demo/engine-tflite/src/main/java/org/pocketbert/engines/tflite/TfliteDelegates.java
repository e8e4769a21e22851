package org.pocketbert.engines.tflite;

import java.io.Closeable;
import org.pocketbert.engines.EngineException;
import org.pocketbert.engines.EngineException.Reason;
import org.pocketbert.engines.ModelSource;
import org.pocketbert.engines.SessionOptions;
import org.tensorflow.lite.Delegate;
import org.tensorflow.lite.Interpreter;
import org.tensorflow.lite.nnapi.NnApiDelegate;

/** Makes the library's options for a processor, and holds the delegate that must outlive the interpreter. */
final class TfliteDelegates implements Closeable {
    private static final String GPU = "org.tensorflow.lite.gpu.GpuDelegate";

    private final Interpreter.Options options = new Interpreter.Options();
    private Delegate delegate;
    private String cache = "none";

    TfliteDelegates(ModelSource source, SessionOptions settings) throws EngineException {
        options.setNumThreads(settings.threads());
        switch (settings.processor()) {
            case CPU -> options.setUseXNNPACK(true);
            case GPU -> delegate = gpu();
            case NPU -> delegate = nnapi(source, settings);
        }
        if (delegate != null) {
            options.addDelegate(delegate);
        }
    }

    Interpreter.Options options() {
        return options;
    }

    /** Returns {@code driver} where the driver was given a folder for what it compiles, else {@code none}. */
    String cache() {
        return cache;
    }

    /**
     * Returns the GPU delegate's class, or null. It is looked up by name because it is a separate library, whose Java part
     * (tensorflow-lite-gpu-api) is not on Maven Central, so that the Maven build could not compile against it.
     */
    static Class<?> gpuClass() {
        try {
            return Class.forName(GPU);
        } catch (ClassNotFoundException | LinkageError e) {
            return null;
        }
    }

    private static Delegate gpu() throws EngineException {
        Class<?> type = gpuClass();
        if (type == null) {
            throw new EngineException(Reason.PROCESSOR, "This app has no library tensorflow-lite-gpu; choose CPU.");
        }
        try {
            return (Delegate) type.getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException | LinkageError e) {
            throw new EngineException(Reason.PROCESSOR, "The GPU cannot be used: " + e + "; choose CPU.");
        }
    }

    private Delegate nnapi(ModelSource source, SessionOptions settings) {
        NnApiDelegate.Options nnapi = new NnApiDelegate.Options()
                .setExecutionPreference(NnApiDelegate.Options.EXECUTION_PREFERENCE_SUSTAINED_SPEED)
                .setUseNnapiCpu(false);
        if (settings.cacheFolder() != null && (settings.cacheFolder().isDirectory() || settings.cacheFolder().mkdirs())) {
            nnapi.setCacheDir(settings.cacheFolder().getPath()).setModelToken(source.sha256());
            cache = "driver";
        }
        return new NnApiDelegate(nnapi);
    }

    @Override
    public void close() {
        if (delegate != null) {
            delegate.close();
        }
        delegate = null;
    }
}
