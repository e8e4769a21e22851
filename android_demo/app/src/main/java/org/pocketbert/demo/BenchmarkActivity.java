package org.pocketbert.demo;

import android.app.Activity;
import android.content.Intent;
import android.os.Bundle;
import android.util.Log;
import android.view.View;
import android.widget.Button;
import android.widget.EditText;
import android.widget.ProgressBar;
import android.widget.TextView;
import com.google.gson.JsonObject;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.pocketbert.demo.model.ModelChoice;
import org.pocketbert.demo.share.ShareProvider;
import org.pocketbert.demo.views.HistogramView;
import org.pocketbert.engines.SessionFacts;
import org.pocketbert.statistics.Cell;
import org.pocketbert.statistics.FileMeasurement;
import org.pocketbert.statistics.Statistics;
import org.pocketbert.statistics.Sustained;

/**
 * Measures a model file and shares the record.
 *
 * <p>Without a hand on the phone: {@code adb shell am start -n org.pocketbert.demo/.BenchmarkActivity --es model
 * onnx/model_int8.onnx --ei runs 50} measures at once, writes {@code benchmark.json} into the app's external files and one line to
 * logcat under the tag {@code PocketBERT}, and ends. With {@code --ez stay true} the screen stays.
 */
public final class BenchmarkActivity extends Activity {
    /** Name of the record in the app's external files and where it is shared. */
    public static final String FILE = "benchmark.json";

    private static final String TAG = "PocketBERT";
    private static final String HEADLESS = BenchmarkPlan.RUNS;
    private static final int PERCENTILE = 95;
    private static final int LOG_CHARACTERS = 3000;

    private BenchmarkState state;
    private boolean written;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        setContentView(R.layout.benchmark);
        state = (BenchmarkState) getLastNonConfigurationInstance();
        boolean fresh = state == null;
        if (fresh) {
            state = new BenchmarkState(this);
        }
        if (saved == null) {
            setText(R.id.runs, String.valueOf(BenchmarkPlan.DEFAULT_RUNS));
            setText(R.id.seconds, "0");
        }
        findViewById(R.id.start).setOnClickListener(view -> startOrStop());
        findViewById(R.id.share).setOnClickListener(view -> share());
        state.attach(this::show);
        if (fresh && saved == null && headless()) {
            startHeadless();
        }
    }

    /** Tells whether the measurement was asked for by an intent and not by a person on the main screen. */
    private boolean headless() {
        return getIntent().hasExtra(HEADLESS);
    }

    private void startHeadless() {
        try {
            BenchmarkPlan plan = BenchmarkPlan.from(getIntent().getExtras());
            setText(R.id.runs, String.valueOf(plan.runs()));
            setText(R.id.seconds, String.valueOf(plan.seconds()));
            state.start(plan);
        } catch (IllegalArgumentException e) {
            state.fail(e);
        }
    }

    @Override
    public Object onRetainNonConfigurationInstance() {
        return state;
    }

    @Override
    protected void onDestroy() {
        super.onDestroy();
        if (isChangingConfigurations()) {
            state.attach(null);
        } else {
            state.end();
        }
    }

    private void startOrStop() {
        if (state.running()) {
            state.stop();
            return;
        }
        try {
            int runs = number(R.id.runs, 1, BenchmarkPlan.MAX_RUNS, R.string.bad_runs);
            int seconds = number(R.id.seconds, 0, BenchmarkPlan.MAX_SECONDS, R.string.bad_seconds);
            state.start(new BenchmarkPlan(ModelChoice.from(getIntent().getExtras()), runs, seconds, 0));
        } catch (IllegalArgumentException e) {
            state.fail(e);
        }
    }

    private int number(int id, int least, int most, int words) {
        String text = this.<EditText>findViewById(id).getText().toString().strip();
        if (text.matches("[0-9]{1,6}")) {
            int value = Integer.parseInt(text);
            if (value >= least && value <= most) {
                return value;
            }
        }
        throw new IllegalArgumentException(getString(words, most));
    }

    private void setText(int id, String text) {
        this.<TextView>findViewById(id).setText(text);
    }

    private void show() {
        ModelChoice choice = choiceOrFirst();
        FileMeasurement measured = state.measured();
        String path = measured == null ? choice.path() : measured.file().path();
        String file = path.isEmpty() ? getString(R.string.default_file) : path;
        String threads = getResources().getQuantityString(R.plurals.thread_count, choice.threads(), choice.threads());
        setText(R.id.setting, file + " · " + choice.processor() + " · " + threads);
        TextView message = findViewById(R.id.message);
        message.setText(state.message());
        message.setVisibility(state.message().isEmpty() ? View.GONE : View.VISIBLE);
        ProgressBar progress = findViewById(R.id.progress);
        progress.setMax(state.planned());
        progress.setProgress(state.done());
        progress.setVisibility(state.running() ? View.VISIBLE : View.INVISIBLE);
        this.<Button>findViewById(R.id.start).setText(state.running() ? R.string.stop : R.string.start);
        findViewById(R.id.share).setEnabled(!state.json().isEmpty());
        showFigures(measured);
        boolean over = !state.running() && (!state.json().isEmpty() || !state.message().isEmpty());
        if (over && headless() && !written) {
            written = true;
            writeHeadless();
        }
    }

    private ModelChoice choiceOrFirst() {
        try {
            return ModelChoice.from(getIntent().getExtras());
        } catch (IllegalArgumentException e) {
            return ModelChoice.first(); // The message on the screen says what is wrong with the intent.
        }
    }

    private void showFigures(FileMeasurement measured) {
        HistogramView histogram = findViewById(R.id.histogram);
        if (measured == null) {
            setText(R.id.figures, "");
            setText(R.id.sustained, "");
            histogram.show(new double[0], 0, 0);
            return;
        }
        Cell cell = measured.cells().get(0);
        Statistics all = cell.statistics();
        double high = Statistics.nearestRank(cell.all(), PERCENTILE);
        SessionFacts facts = measured.facts();
        double[] sorted = cell.all();
        java.util.Arrays.sort(sorted);
        setText(
                R.id.figures,
                getString(
                        R.string.figures, all.n(), cell.length(), all.p50(), all.mean(), all.p90(), high, all.p99(), all.min(),
                        sorted[sorted.length - 1], facts.loadMillis(), facts.firstRunMillis()));
        histogram.show(cell.all(), all.p50(), high);
        setText(R.id.sustained, sustained(measured.sustained()));
    }

    private String sustained(List<Sustained.Point> points) {
        StringBuilder out = new StringBuilder();
        for (Sustained.Point point : points) {
            String thermal = point.thermal().isEmpty() ? getString(R.string.unknown) : point.thermal();
            out.append(getString(R.string.sustained_row, Math.round(point.afterSeconds()), point.medianMillis(), thermal))
                    .append('\n');
        }
        if (points.size() > 1) {
            double first = points.get(0).medianMillis();
            double last = points.get(points.size() - 1).medianMillis();
            out.append(getString(R.string.sustained_result, last / first));
        }
        return out.toString();
    }

    private void share() {
        try {
            write(ShareProvider.file(this, FILE), state.json());
        } catch (IOException e) {
            state.fail(e);
            return;
        }
        Intent send = new Intent(Intent.ACTION_SEND)
                .setType("application/json")
                .putExtra(Intent.EXTRA_SUBJECT, getString(R.string.share_title))
                .putExtra(Intent.EXTRA_STREAM, ShareProvider.address(FILE))
                .addFlags(Intent.FLAG_GRANT_READ_URI_PERMISSION);
        startActivity(Intent.createChooser(send, getString(R.string.share)));
    }

    /** Writes the record, or an object with the message, where `adb pull` finds it, and one line to logcat. */
    private void writeHeadless() {
        String text = state.json();
        if (text.isEmpty()) {
            JsonObject failure = new JsonObject();
            failure.addProperty("error", state.message());
            text = failure.toString();
        }
        try {
            File file = new File(getExternalFilesDir(null), FILE);
            write(file, text);
            Log.i(TAG, "written " + file);
            String line = text.replaceAll("\\s*\\n\\s*", "");
            for (int from = 0; from < line.length(); from += LOG_CHARACTERS) { // Longer lines are cut by the system.
                Log.i(TAG, line.substring(from, Math.min(line.length(), from + LOG_CHARACTERS)));
            }
        } catch (IOException e) {
            Log.e(TAG, "cannot write " + FILE + ": " + e.getMessage());
        }
        if (!getIntent().getBooleanExtra("stay", false)) {
            finish();
        }
    }

    private static void write(File file, String text) throws IOException {
        File folder = file.getParentFile();
        if (!folder.isDirectory() && !folder.mkdirs()) {
            throw new IOException("cannot make the folder " + folder);
        }
        try (FileOutputStream out = new FileOutputStream(file)) {
            out.write(text.getBytes(StandardCharsets.UTF_8));
        }
    }
}
