package org.pocketbert.statistics;

import java.util.Arrays;

/**
 * Describes timings in milliseconds, with the definitions of {@code pocketbert benchmark}.
 *
 * <p>Percentiles are nearest-rank: each is one of the samples. No sample is left out.
 *
 * @param n number of samples
 * @param min smallest sample
 * @param p50 median
 * @param p90 90th percentile
 * @param p99 99th percentile; with fewer than 100 samples the largest sample
 * @param mean arithmetic mean
 * @param stdev sample standard deviation (n - 1); 0 for one sample
 */
public record Statistics(int n, double min, double p50, double p90, double p99, double mean, double stdev) {
    /**
     * Describes timings.
     *
     * @param samples at least one timing in milliseconds, in any order
     */
    public static Statistics of(double[] samples) {
        if (samples.length == 0) {
            throw new IllegalArgumentException("no samples: a benchmark without runs has no statistics.");
        }
        double[] ordered = samples.clone();
        Arrays.sort(ordered);
        double mean = 0;
        for (double sample : ordered) {
            mean += sample / ordered.length;
        }
        double squares = 0;
        for (double sample : ordered) {
            squares += (sample - mean) * (sample - mean);
        }
        double stdev = ordered.length > 1 ? Math.sqrt(squares / (ordered.length - 1)) : 0;
        return new Statistics(
                ordered.length, ordered[0], rank(ordered, 50), rank(ordered, 90), rank(ordered, 99), mean, stdev);
    }

    /**
     * Returns the smallest sample that at least a percentage of the samples do not exceed.
     *
     * @param samples at least one sample, in any order
     * @param percent a whole number from 1 to 100
     */
    public static double nearestRank(double[] samples, int percent) {
        double[] ordered = samples.clone();
        Arrays.sort(ordered);
        return rank(ordered, percent);
    }

    /** Returns the median: the mean of the two middle samples where their number is even. */
    public static double median(double[] samples) {
        double[] ordered = samples.clone();
        Arrays.sort(ordered);
        int middle = ordered.length / 2;
        return ordered.length % 2 == 1 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
    }

    private static double rank(double[] ordered, int percent) {
        long place = ((long) percent * ordered.length + 99) / 100; // rounded up
        return ordered[(int) place - 1];
    }
}
