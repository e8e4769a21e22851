package org.pocketbert.statistics;

import java.util.ArrayList;
import java.util.List;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import org.pocketbert.engines.EngineException;

/** Runs a model without a pause, to see whether heat slows the phone down. */
public final class Sustained {
    private static final double NANOS_PER_SECOND = 1e9;

    private final LongSupplier nanos;
    private final Supplier<String> thermal;

    /**
     * Holds the inferences of about one second.
     *
     * @param afterSeconds seconds since the start
     * @param medianMillis median time of these inferences in milliseconds
     * @param thermal thermal status in the words of the phone; empty where it does not tell
     */
    public record Point(double afterSeconds, double medianMillis, String thermal) {}

    /**
     * Creates a run.
     *
     * @param nanos the clock in nanoseconds
     * @param thermal tells the thermal status
     */
    public Sustained(LongSupplier nanos, Supplier<String> thermal) {
        this.nanos = nanos;
        this.thermal = thermal;
    }

    /**
     * Runs a model for some seconds.
     *
     * @param inference runs the model once
     * @param seconds how long; reported to {@code progress} as the plan
     * @param progress is told after every second, and may end the run
     * @return one point for each second
     * @throws EngineException if the engine fails
     */
    public List<Point> run(Inference inference, int seconds, Progress progress) throws EngineException {
        List<Point> out = new ArrayList<>();
        Latency latency = new Latency(nanos);
        long begin = nanos.getAsLong();
        boolean going = true;
        for (int second = 1; second <= seconds && going; second++) {
            List<Double> times = new ArrayList<>();
            do {
                times.add(latency.time(inference));
            } while ((nanos.getAsLong() - begin) / NANOS_PER_SECOND < second);
            double median = Statistics.median(times.stream().mapToDouble(Double::doubleValue).toArray());
            out.add(new Point((nanos.getAsLong() - begin) / NANOS_PER_SECOND, median, thermal.get()));
            going = progress.report(second, seconds, median);
        }
        return List.copyOf(out);
    }
}
