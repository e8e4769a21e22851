package org.pocketbert.demo;

import static org.robolectric.Shadows.shadowOf;

import android.app.Activity;
import android.graphics.Bitmap;
import android.graphics.Canvas;
import android.os.Looper;
import android.view.View;
import android.view.ViewGroup;
import android.widget.TextView;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.time.Duration;
import java.util.function.BooleanSupplier;

/** Waits for screens, reads what they show, and draws them. */
final class Screens {
    private static final long MOST_MILLIS = 60_000;
    private static final int STEP_MILLIS = 20;

    private Screens() {}

    /** Runs the main thread, and lets its clock advance, until a condition holds. */
    static void until(String what, BooleanSupplier condition) throws InterruptedException {
        for (long waited = 0; !condition.getAsBoolean(); waited += STEP_MILLIS) {
            if (waited > MOST_MILLIS) {
                throw new AssertionError("waited in vain: " + what);
            }
            Thread.sleep(STEP_MILLIS);
            shadowOf(Looper.getMainLooper()).idleFor(Duration.ofMillis(STEP_MILLIS));
        }
    }

    /** Returns all visible texts and content descriptions below a view, one a line. */
    static String texts(View view) {
        StringBuilder out = new StringBuilder();
        collect(view, out);
        return out.toString();
    }

    private static void collect(View view, StringBuilder out) {
        if (view.getVisibility() != View.VISIBLE) {
            return;
        }
        if (view.getContentDescription() != null) {
            out.append('[').append(view.getContentDescription()).append("]\n");
        }
        if (view instanceof TextView text && text.length() > 0) {
            out.append(text.getText()).append('\n');
        }
        if (view instanceof ViewGroup group) {
            for (int i = 0; i < group.getChildCount(); i++) {
                collect(group.getChildAt(i), out);
            }
        }
    }

    /** Draws a screen into the folder of pictures. */
    static void draw(Activity activity, String name) throws IOException {
        View decor = activity.getWindow().getDecorView();
        int width = activity.getResources().getDisplayMetrics().widthPixels;
        int height = activity.getResources().getDisplayMetrics().heightPixels;
        decor.measure(
                View.MeasureSpec.makeMeasureSpec(width, View.MeasureSpec.EXACTLY),
                View.MeasureSpec.makeMeasureSpec(height, View.MeasureSpec.EXACTLY));
        decor.layout(0, 0, width, height);
        Bitmap bitmap = Bitmap.createBitmap(width, height, Bitmap.Config.ARGB_8888);
        decor.draw(new Canvas(bitmap));
        File file = new File(System.getProperty("pocketbert.pictures"), name + ".png");
        file.getParentFile().mkdirs();
        try (FileOutputStream out = new FileOutputStream(file)) {
            bitmap.compress(Bitmap.CompressFormat.PNG, 100, out);
        }
    }
}
