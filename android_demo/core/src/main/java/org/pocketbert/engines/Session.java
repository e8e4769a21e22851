package org.pocketbert.engines;

import java.util.Map;

/** Runs one model file. Not thread-safe: call it from one thread at a time. */
public interface Session extends AutoCloseable {
    /**
     * Runs the model.
     *
     * @param inputs a matrix of shape [batch, length] for each name of {@link SessionFacts#inputs()}; other names are ignored
     * @return the outputs by name
     * @throws EngineException if the engine refuses the inputs or fails
     */
    Map<String, Tensor> run(Map<String, long[][]> inputs) throws EngineException;

    /** Returns what the session is and what opening it cost. */
    SessionFacts facts();

    /** Releases native memory; a second call does nothing. */
    @Override
    void close();
}
