package org.pocketbert.engines;

import java.util.List;

/** Opens model files of one format. Implementations are stateless and thread-safe. */
public interface Engine {
    /** Returns the name for people, such as {@code ONNX Runtime}. */
    String name();

    /** Returns the format of {@code artifacts.json} that this engine opens: {@code onnx} or {@code tflite}. */
    String format();

    /**
     * Returns the special runtimes of {@code artifacts.json}, such as {@code tflite216}, whose files are made for this engine.
     * Files without a runtime open too; whether their answers are right here is for the self-test to say.
     */
    List<String> runtimes();

    /** Returns whether the library can be loaded: an app may lack its native part for this CPU. */
    boolean available();

    /** Returns the version of the library, such as {@code 1.26.0}. */
    String version();

    /** Returns the processors that this library offers on this machine; CPU is always first. */
    List<Processor> processors();

    /**
     * Opens a model file.
     *
     * @throws EngineException if the file is corrupt, has an unsupported operator, does not fit into memory, or the processor is
     *     not available
     */
    Session open(ModelSource source, SessionOptions options) throws EngineException;
}
