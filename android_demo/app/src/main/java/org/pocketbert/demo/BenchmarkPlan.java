package org.pocketbert.demo;

import android.os.Bundle;
import org.pocketbert.demo.model.ModelChoice;

/**
 * Says what a benchmark does.
 *
 * @param choice file, processor and threads
 * @param runs timed inferences of each of the {@link #REPEATS} repeats
 * @param seconds length of the sustained run; 0 for none
 * @param length tokens of the input; 0 for the folder's maximum
 */
record BenchmarkPlan(ModelChoice choice, int runs, int seconds, int length) {
    /** Repeats, whose medians give the interval. */
    static final int REPEATS = 3;
    /** Runs of each repeat where none are given. */
    static final int DEFAULT_RUNS = 50;
    /** Most runs of each repeat. */
    static final int MAX_RUNS = 100_000;
    /** Longest sustained run in seconds: an hour. */
    static final int MAX_SECONDS = 3600;

    static final String RUNS = "runs";
    static final String SECONDS = "seconds";
    static final String LENGTH = "length";

    /**
     * Reads a plan from an intent: {@code --es model onnx/model.onnx --ei runs 50 --ei seconds 30 --ei length 64 --ei threads 2}.
     *
     * @throws IllegalArgumentException if a value is not allowed; the message names it and what is allowed
     */
    static BenchmarkPlan from(Bundle values) {
        ModelChoice choice = ModelChoice.from(values);
        int runs = values == null ? DEFAULT_RUNS : values.getInt(RUNS, DEFAULT_RUNS);
        int seconds = values == null ? 0 : values.getInt(SECONDS, 0);
        int length = values == null ? 0 : values.getInt(LENGTH, 0);
        check(RUNS, runs, 1, MAX_RUNS);
        check(SECONDS, seconds, 0, MAX_SECONDS);
        check(LENGTH, length, 0, Integer.MAX_VALUE);
        return new BenchmarkPlan(choice, runs, seconds, length);
    }

    private static void check(String name, int value, int least, int most) {
        if (value < least || value > most) {
            throw new IllegalArgumentException(name + " is " + value + "; allowed: " + least + " to " + most + ".");
        }
    }
}
