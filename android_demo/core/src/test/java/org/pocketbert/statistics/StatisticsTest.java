package org.pocketbert.statistics;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import com.google.gson.JsonObject;
import java.io.File;
import java.util.List;
import org.junit.Test;
import org.pocketbert.answers.Cases;

public class StatisticsTest {
    private static final double EXACT = 1e-9;

    @Test
    public void figuresAreThoseOfPython() throws Exception {
        List<JsonObject> rows = Cases.lines(new File(Cases.root(), "statistics.jsonl"));
        assertEquals(10, rows.size());
        for (JsonObject row : rows) {
            double[] samples = Cases.numbers(row, "samples");
            Statistics found = Statistics.of(samples);
            assertEquals(row.get("n").getAsInt(), found.n());
            assertEquals(row.get("min").getAsDouble(), found.min(), 0);
            assertEquals(row.get("p50").getAsDouble(), found.p50(), 0);
            assertEquals(row.get("p90").getAsDouble(), found.p90(), 0);
            assertEquals(row.get("p99").getAsDouble(), found.p99(), 0);
            assertEquals(row.get("mean").getAsDouble(), found.mean(), EXACT);
            assertEquals(row.get("stdev").getAsDouble(), found.stdev(), EXACT);
            assertEquals(row.get("median").getAsDouble(), Statistics.median(samples), EXACT);
            Interval interval = Interval.of(samples);
            if (row.get("interval").isJsonNull()) {
                assertNull(interval);
            } else {
                double[] ends = Cases.numbers(row, "interval");
                assertEquals(ends[0], interval.low(), EXACT);
                assertEquals(ends[1], interval.high(), EXACT);
            }
        }
    }

    @Test
    public void percentilesAreSamples() {
        double[] samples = {5, 1, 4, 2, 3, 6, 7, 8, 9, 10};
        assertEquals(5, Statistics.nearestRank(samples, 50), 0);
        assertEquals(9, Statistics.nearestRank(samples, 90), 0);
        assertEquals(10, Statistics.nearestRank(samples, 99), 0);
        assertEquals(1, Statistics.nearestRank(samples, 1), 0);
        assertEquals(5.5, Statistics.median(samples), 0);
        assertEquals(0, Statistics.of(new double[] {7}).stdev(), 0);
        assertThrows(IllegalArgumentException.class, () -> Statistics.of(new double[0]));
    }

    private static Warmup warmedUp(double... times) {
        Warmup warmup = new Warmup();
        for (int i = 0; !warmup.isOver(); i++) {
            warmup.add(times[Math.min(i, times.length - 1)]);
        }
        return warmup;
    }

    @Test
    public void aWarmupEndsWhenTwoWindowsAgree() {
        Warmup steady = warmedUp(10);
        assertEquals(10, steady.runs());
        assertTrue(steady.isStable());
        Warmup settling = warmedUp(90, 90, 90, 90, 90, 50, 50, 50, 50, 50, 20);
        assertEquals(20, settling.runs());
        assertTrue(settling.isStable());
    }

    @Test
    public void aWarmupThatNeverSettlesEndsAfterSixtyRuns() {
        double[] falling = new double[60];
        for (int i = 0; i < 60; i++) {
            falling[i] = Math.pow(0.9, i);
        }
        Warmup warmup = warmedUp(falling);
        assertEquals(60, warmup.runs());
        assertFalse(warmup.isStable());
    }

    /** A clock by which the inference number i takes i milliseconds. */
    private static final class Clock {
        private long nanos;
        private int runs;

        void run() {
            runs++;
            nanos += runs * 1_000_000L;
        }
    }

    @Test
    public void runsAndRepeatsAreTimedAfterTheWarmup() throws Exception {
        Clock clock = new Clock();
        Cell cell = new Latency(() -> clock.nanos).measure(32, clock::run, 4, 3, (done, planned, millis) -> true);
        int before = cell.warmupRuns();
        assertTrue(before >= Warmup.LEAST);
        assertEquals(3, cell.wallMillis().size());
        assertEquals(before + 1, cell.wallMillis().get(0)[0], EXACT);
        assertEquals(before + 12, cell.wallMillis().get(2)[3], EXACT);
        assertEquals(12, cell.statistics().n());
        assertEquals(before + 12, cell.statistics().p99(), EXACT);
        assertTrue(cell.interval().low() < cell.interval().high());
    }

    @Test
    public void aMeasurementThatIsEndedKeepsWhatItHas() throws Exception {
        Clock clock = new Clock();
        Cell cell = new Latency(() -> clock.nanos).measure(32, clock::run, 4, 3, (done, planned, millis) -> {
            assertEquals(12, planned);
            return done < 6;
        });
        assertEquals(2, cell.wallMillis().size());
        assertEquals(2, cell.wallMillis().get(1).length);
        assertNull(cell.interval());
    }

    @Test
    public void aSustainedRunHasAPointForEachSecond() throws Exception {
        long[] nanos = {0};
        Sustained run = new Sustained(() -> nanos[0], () -> nanos[0] > 2_000_000_000L ? "severe" : "none");
        List<Sustained.Point> points =
                run.run(() -> nanos[0] += 300_000_000L, 3, (done, planned, millis) -> planned == 3);
        assertEquals(3, points.size());
        assertEquals(1.2, points.get(0).afterSeconds(), EXACT);
        assertEquals(300, points.get(0).medianMillis(), EXACT);
        assertEquals("none", points.get(0).thermal());
        assertEquals("severe", points.get(2).thermal());
        assertEquals(1, run.run(() -> nanos[0] += 300_000_000L, 3, (done, planned, millis) -> false).size());
    }
}
