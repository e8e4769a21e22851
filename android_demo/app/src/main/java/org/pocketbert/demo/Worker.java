package org.pocketbert.demo;

import android.os.Handler;
import android.os.Looper;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Consumer;

/** Runs work on one background thread, in order, and gives what comes out to the main thread. */
public final class Worker {
    /** Work that may fail with any exception. */
    public interface Job<T> {
        /** Does the work on the background thread. */
        T run() throws Exception;
    }

    private final ExecutorService executor = Executors.newSingleThreadExecutor();
    private final Handler main = new Handler(Looper.getMainLooper());

    /** Runs a job; one of the two consumers is called on the main thread. Nothing escapes, out of memory included. */
    public <T> void run(Job<T> job, Consumer<T> done, Consumer<Throwable> failed) {
        executor.execute(() -> {
            try {
                T value = job.run();
                main.post(() -> done.accept(value));
            } catch (Exception | OutOfMemoryError | LinkageError | StackOverflowError e) {
                main.post(() -> failed.accept(e));
            }
        });
    }

    /** Calls something on the main thread. */
    public void post(Runnable action) {
        main.post(action);
    }

    /** Calls something on the main thread after a while, unless {@link #forget} comes first. */
    public void postLater(Runnable action, long millis) {
        main.postDelayed(action, millis);
    }

    /** Drops a call that {@link #postLater} has not made yet. */
    public void forget(Runnable action) {
        main.removeCallbacks(action);
    }

    /** Ends the thread after a last job, which releases what the jobs held. */
    public void end(Runnable last) {
        executor.execute(last);
        executor.shutdown();
    }
}
