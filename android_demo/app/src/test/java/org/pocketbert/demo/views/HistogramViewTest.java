package org.pocketbert.demo.views;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;

import org.junit.Test;

public class HistogramViewTest {
    private static final double EXACT = 1e-12;

    @Test
    public void oneSlowRunDoesNotPressAllOthersIntoTheFirstBar() {
        double[] sorted = {0, 1, 2, 3, 4, 50};
        assertEquals(6, HistogramView.end(sorted, 4), EXACT);
        assertArrayEquals(new int[] {2, 1, 2, 1}, HistogramView.counts(sorted, 4, 6));
    }

    @Test
    public void withoutSlowRunsTheAxisEndsAtTheSlowest() {
        assertEquals(2, HistogramView.end(new double[] {1, 1.5, 2}, 2), EXACT);
    }

    @Test
    public void equalRunsFillTheFirstBar() {
        double[] equal = {3, 3, 3};
        assertArrayEquals(new int[] {3, 0}, HistogramView.counts(equal, 2, HistogramView.end(equal, 3)));
    }
}
