package org.pocketbert.statistics;

/**
 * Decides when a warm-up ends: when the medians of two neighbouring windows of {@link #WINDOW} runs differ by less than 3 %, after at
 * least {@link #LEAST} runs and at most {@link #MOST}.
 */
public final class Warmup {
    /** Runs whose medians are compared. */
    public static final int WINDOW = 5;
    /** Fewest runs. */
    public static final int LEAST = 10;
    /** Most runs. */
    public static final int MOST = 60;

    private static final double STABLE = 0.03;

    private final double[] window = new double[WINDOW];
    private int runs;
    private double before = Double.NaN;
    private boolean stable;

    /** Adds the time of one run in milliseconds. */
    public void add(double millis) {
        window[runs % WINDOW] = millis;
        runs++;
        if (runs % WINDOW == 0) {
            double median = Statistics.median(window);
            stable = Math.abs(median / before - 1) < STABLE; // false for the first window
            before = median;
        }
    }

    /** Returns whether no more runs are needed. */
    public boolean isOver() {
        return runs % WINDOW == 0 && runs >= LEAST && (stable || runs >= MOST);
    }

    /** Returns whether the times became stable. */
    public boolean isStable() {
        return stable;
    }

    /** Returns the number of runs. */
    public int runs() {
        return runs;
    }
}
