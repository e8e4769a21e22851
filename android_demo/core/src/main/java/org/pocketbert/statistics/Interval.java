package org.pocketbert.statistics;

/**
 * Says where a typical latency lies with a confidence of 95 %, from the medians of repeats.
 *
 * @param low lower end in milliseconds
 * @param high upper end in milliseconds
 */
public record Interval(double low, double high) {
    /** Fewer repeats have no interval. */
    public static final int REPEATS_LEAST = 3;

    // Student's t, 97.5 % point, for 1 to 30 degrees of freedom (standard table)
    private static final double[] T975 = {
        12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
        2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
        2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
    };
    private static final double Z975 = 1.959964;

    /**
     * Makes a t interval over logarithms: timings are positive and skewed, and what disturbs them multiplies.
     *
     * @param medians one median in milliseconds for each repeat
     * @return the interval, or null for fewer than three repeats
     */
    public static Interval of(double[] medians) {
        if (medians.length < REPEATS_LEAST) {
            return null;
        }
        double[] logs = new double[medians.length];
        for (int i = 0; i < logs.length; i++) {
            logs[i] = Math.log(medians[i]);
        }
        Statistics statistics = Statistics.of(logs);
        double half = studentT(logs.length - 1) * statistics.stdev() / Math.sqrt(logs.length);
        return new Interval(Math.exp(statistics.mean() - half), Math.exp(statistics.mean() + half));
    }

    /** Returns the 97.5 % point of Student's t; beyond 30 degrees of freedom by two terms of Cornish and Fisher. */
    static double studentT(int freedom) {
        if (freedom <= T975.length) {
            return T975[freedom - 1];
        }
        double z = Z975;
        double z3 = z * z * z;
        double z5 = z3 * z * z;
        return z + (z3 + z) / (4.0 * freedom) + (5 * z5 + 16 * z3 + 3 * z) / (96.0 * freedom * freedom);
    }
}
