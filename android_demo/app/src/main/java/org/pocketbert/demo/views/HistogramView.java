package org.pocketbert.demo.views;

import android.content.Context;
import android.graphics.Canvas;
import android.graphics.Paint;
import android.util.AttributeSet;
import android.util.TypedValue;
import android.view.View;
import java.util.Arrays;
import org.pocketbert.demo.R;

/**
 * Draws how often a run took how long: bars over milliseconds, with lines at the median and at the 95th percentile.
 *
 * <p>The axis ends somewhat beyond the 95th percentile, since one slow run would press all others into the first bar; the last bar
 * counts the slower ones too.
 */
public final class HistogramView extends View {
    private static final int BINS = 30;
    private static final double BEYOND_PERCENTILE = 1.5;

    private final Paint bars = new Paint();
    private final Paint lines = new Paint(Paint.ANTI_ALIAS_FLAG);
    private final Paint words = new Paint(Paint.ANTI_ALIAS_FLAG);
    private double[] sorted = {};
    private double median;
    private double high;

    /** Creates the view for a layout file. */
    public HistogramView(Context context, AttributeSet attributes) {
        super(context, attributes);
        bars.setColor(context.getColor(R.color.plot));
        lines.setColor(context.getColor(R.color.error));
        lines.setStrokeWidth(dimension(TypedValue.COMPLEX_UNIT_DIP, 2));
        words.setColor(context.getColor(R.color.plot_text));
        words.setTextSize(dimension(TypedValue.COMPLEX_UNIT_SP, 12));
        setVisibility(INVISIBLE);
    }

    private float dimension(int unit, float size) {
        return TypedValue.applyDimension(unit, size, getResources().getDisplayMetrics());
    }

    /** Shows these runs, in milliseconds; without runs the view is hidden. */
    public void show(double[] millis, double medianMillis, double percentile95) {
        sorted = millis.clone();
        Arrays.sort(sorted);
        median = medianMillis;
        high = percentile95;
        setVisibility(sorted.length == 0 ? INVISIBLE : VISIBLE);
        if (sorted.length > 0) {
            setContentDescription(getResources()
                    .getString(R.string.histogram_spoken, sorted.length, sorted[0], sorted[sorted.length - 1], median));
        }
        invalidate();
    }

    /** Returns where the axis ends, in milliseconds. */
    static double end(double[] sorted, double percentile95) {
        double low = sorted[0];
        return Math.min(sorted[sorted.length - 1], low + BEYOND_PERCENTILE * (percentile95 - low));
    }

    /** Counts the runs of each of the bars between the fastest run and the end; without a range all are in the first one. */
    static int[] counts(double[] sorted, int bins, double end) {
        int[] counts = new int[bins];
        double low = sorted[0];
        double width = (end - low) / bins;
        for (double value : sorted) {
            counts[width == 0 ? 0 : Math.min(bins - 1, (int) ((value - low) / width))]++;
        }
        return counts;
    }

    @Override
    protected void onDraw(Canvas canvas) {
        if (sorted.length == 0) {
            return;
        }
        float bottom = getHeight() - words.getTextSize() * 1.4f;
        double end = end(sorted, high);
        int[] counts = counts(sorted, BINS, end);
        int most = Arrays.stream(counts).max().orElse(1);
        float width = getWidth() / (float) BINS;
        for (int i = 0; i < BINS; i++) {
            canvas.drawRect(i * width, bottom - bottom * counts[i] / most, (i + 1) * width - 1, bottom, bars);
        }
        drawLine(canvas, median, end, bottom);
        drawLine(canvas, high, end, bottom);
        String low = getResources().getString(R.string.milliseconds, sorted[0]);
        int unit = end < sorted[sorted.length - 1] ? R.string.milliseconds_or_more : R.string.milliseconds;
        String top = getResources().getString(unit, end);
        canvas.drawText(low, 0, getHeight() - words.descent(), words);
        canvas.drawText(top, getWidth() - words.measureText(top), getHeight() - words.descent(), words);
    }

    private void drawLine(Canvas canvas, double millis, double end, float bottom) {
        double range = end - sorted[0];
        float x = range == 0 ? 0 : (float) ((millis - sorted[0]) / range * getWidth());
        canvas.drawLine(x, 0, x, bottom, lines);
    }
}
