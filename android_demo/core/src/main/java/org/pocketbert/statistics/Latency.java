package org.pocketbert.statistics;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.LongSupplier;
import org.pocketbert.engines.EngineException;

/** Times inferences: warm-up until stable, then repeats of timed runs. */
public final class Latency {
    private static final double NANOS_PER_MILLI = 1e6;

    private final LongSupplier nanos;

    /**
     * Creates a timer.
     *
     * @param nanos the clock in nanoseconds, such as {@code System::nanoTime}
     */
    public Latency(LongSupplier nanos) {
        this.nanos = nanos;
    }

    /**
     * Times inferences on one input.
     *
     * @param length tokens of the input
     * @param inference runs the model once
     * @param runs timed inferences of each repeat
     * @param repeats number of repeats
     * @param progress is told of every timed inference, and may end the measurement
     * @return the timings; with fewer runs where the measurement was ended, and null where none was made
     * @throws EngineException if the engine fails
     */
    public Cell measure(int length, Inference inference, int runs, int repeats, Progress progress) throws EngineException {
        Warmup warmup = new Warmup();
        while (!warmup.isOver()) {
            warmup.add(time(inference));
        }
        List<double[]> wall = new ArrayList<>();
        boolean going = true;
        for (int repeat = 0; repeat < repeats && going; repeat++) {
            double[] times = new double[runs];
            int made = 0;
            while (made < runs && going) {
                times[made] = time(inference);
                made++;
                going = progress.report(repeat * runs + made, repeats * runs, times[made - 1]);
            }
            wall.add(Arrays.copyOf(times, made));
        }
        return wall.isEmpty() ? null : new Cell(length, warmup.runs(), warmup.isStable(), List.copyOf(wall));
    }

    /** Returns the time of one inference in milliseconds. */
    double time(Inference inference) throws EngineException {
        long start = nanos.getAsLong();
        inference.run();
        return (nanos.getAsLong() - start) / NANOS_PER_MILLI;
    }
}
