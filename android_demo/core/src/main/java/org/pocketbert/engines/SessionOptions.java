package org.pocketbert.engines;

import java.io.File;

/**
 * Says how a model is opened.
 *
 * @param processor where it runs; one of {@link Engine#processors()}
 * @param threads number of CPU threads, at least 1
 * @param cacheFolder folder for what the engine prepares once and reads at the next start, or null for no cache
 */
public record SessionOptions(Processor processor, int threads, File cacheFolder) {
    /** Refuses fewer than one thread. */
    public SessionOptions {
        if (threads < 1) {
            throw new IllegalArgumentException("threads is " + threads + "; use 1 or more.");
        }
    }

    /** Returns options for the CPU without a cache. */
    public static SessionOptions cpu(int threads) {
        return new SessionOptions(Processor.CPU, threads, null);
    }
}
