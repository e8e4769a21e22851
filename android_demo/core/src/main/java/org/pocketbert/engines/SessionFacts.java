package org.pocketbert.engines;

import java.util.List;

/**
 * Says what an open session is and what opening it cost.
 *
 * @param engine name of the engine with its version, such as {@code ONNX Runtime 1.26.0}
 * @param processor where the session runs
 * @param threads number of CPU threads
 * @param loadMillis time from the bytes to a session that can run, in milliseconds
 * @param firstRunMillis time of the first inference in milliseconds, or NaN before it
 * @param memoryBytes growth of the process's resident memory while loading and at the first inference, in bytes; -1 where the
 *     system does not tell
 * @param cache state of the engine's cache: {@code none}, {@code written}, {@code read}, or {@code driver} where the driver keeps one
 * @param inputs names of the inputs that {@link Session#run} expects
 * @param lengths the sequence lengths in tokens that the file takes, ascending; empty where every length is taken
 */
public record SessionFacts(
        String engine,
        Processor processor,
        int threads,
        double loadMillis,
        double firstRunMillis,
        long memoryBytes,
        String cache,
        List<String> inputs,
        List<Integer> lengths) {
    /** Returns the same facts with the cost of the first inference. */
    public SessionFacts afterFirstRun(double millis, long bytes) {
        return new SessionFacts(engine, processor, threads, loadMillis, millis, bytes, cache, inputs, lengths);
    }
}
