package org.pocketbert.statistics;

import java.util.List;

/**
 * Holds the timings of one file at one length. Batch is 1.
 *
 * @param length tokens of the input, special ones included
 * @param warmupRuns inferences before the first timed one
 * @param warmupStable whether their times became stable
 * @param wallMillis times in milliseconds, one list for each repeat, in the order they were taken
 */
public record Cell(int length, int warmupRuns, boolean warmupStable, List<double[]> wallMillis) {
    /** Returns all timings, repeat after repeat. */
    public double[] all() {
        int count = 0;
        for (double[] repeat : wallMillis) {
            count += repeat.length;
        }
        double[] out = new double[count];
        int to = 0;
        for (double[] repeat : wallMillis) {
            System.arraycopy(repeat, 0, out, to, repeat.length);
            to += repeat.length;
        }
        return out;
    }

    /** Describes all timings. */
    public Statistics statistics() {
        return Statistics.of(all());
    }

    /** Returns where the typical time lies, from the medians of the repeats; null for fewer than three repeats. */
    public Interval interval() {
        double[] medians = new double[wallMillis.size()];
        for (int i = 0; i < medians.length; i++) {
            medians[i] = Statistics.median(wallMillis.get(i));
        }
        return Interval.of(medians);
    }
}
