package org.pocketbert.demo;

import android.content.Context;
import java.io.StringWriter;
import java.text.SimpleDateFormat;
import java.util.Date;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TimeZone;
import java.util.concurrent.atomic.AtomicBoolean;
import org.pocketbert.demo.model.LoadedFolder;
import org.pocketbert.demo.model.OpenModel;
import org.pocketbert.engines.SessionFacts;
import org.pocketbert.statistics.BenchmarkRecord;
import org.pocketbert.statistics.Cell;
import org.pocketbert.statistics.FileMeasurement;
import org.pocketbert.statistics.Inference;
import org.pocketbert.statistics.Latency;
import org.pocketbert.statistics.Sustained;
import org.pocketbert.text.Batch;
import org.pocketbert.text.Input;
import org.pocketbert.tokenizers.Encoding;

/** Holds what the benchmark screen shows, and the run behind it. It outlives the activity when the phone is turned. */
final class BenchmarkState {
    private static final double NANOS_PER_SECOND = 1e9;
    private static final String SENTENCE = "This sentence is repeated until the input is full. ";

    private final Context context;
    private final Worker worker = new Worker();
    private final AtomicBoolean stop = new AtomicBoolean();
    private Runnable changed = () -> {};
    private boolean running;
    private int done;
    private int planned = 1;
    private String message = "";
    private FileMeasurement measured;
    private String json = "";

    BenchmarkState(Context context) {
        this.context = context.getApplicationContext();
    }

    /** Says whom to call when something has changed; null for nobody. */
    void attach(Runnable listener) {
        changed = listener == null ? () -> {} : listener;
        changed.run();
    }

    /** Begins a run; a run that is going on is left. */
    void start(BenchmarkPlan plan) {
        if (running) {
            return;
        }
        running = true;
        stop.set(false);
        message = "";
        measured = null;
        json = "";
        done = 0;
        planned = 1;
        changed.run();
        worker.run(() -> measure(plan), record -> {
            running = false;
            json = record;
            message = stop.get() ? context.getString(R.string.stopped) : "";
            changed.run();
        }, failure -> {
            running = false;
            fail(failure);
        });
    }

    /** Shows a failure. */
    void fail(Throwable failure) {
        message = Messages.of(context, failure);
        changed.run();
    }

    /** Ends a run early; what was measured until then counts. */
    void stop() {
        stop.set(true);
    }

    /** Releases everything; the state is not used afterwards. */
    void end() {
        attach(null);
        stop();
        worker.end(() -> {});
    }

    /** Measures on the worker's thread and returns the record as JSON. */
    private String measure(BenchmarkPlan plan) throws Exception {
        PhoneFacts phone = new PhoneFacts(context);
        String made = utc();
        long begin = System.nanoTime();
        String before = phone.thermal();
        LoadedFolder folder = LoadedFolder.read(context);
        FileMeasurement file;
        try (OpenModel model = folder.open(plan.choice())) {
            Map<String, long[][]> inputs = inputs(folder, model, plan.length());
            int length = inputs.get("input_ids")[0].length;
            Inference inference = () -> model.session().run(inputs);
            Cell cell = new Latency(System::nanoTime)
                    .measure(length, inference, plan.runs(), BenchmarkPlan.REPEATS, this::report);
            List<Sustained.Point> points = List.of();
            if (plan.seconds() > 0 && !stop.get()) {
                points = new Sustained(System::nanoTime, phone::thermal).run(inference, plan.seconds(), this::report);
            }
            file = new FileMeasurement(
                    folder.candidate(plan.choice()).file(), model.facts(), model.report(), List.of(cell), points);
        }
        BenchmarkRecord record = new BenchmarkRecord(
                made,
                "0.1.0",
                phone.phone(),
                "one sentence repeated to the full length",
                plan.runs(),
                BenchmarkPlan.REPEATS,
                (System.nanoTime() - begin) / NANOS_PER_SECOND,
                before,
                phone.thermal(),
                phone.power(),
                List.of(file));
        StringWriter text = new StringWriter();
        record.write(text);
        worker.post(() -> {
            measured = file;
            changed.run();
        });
        return text.toString();
    }

    /** Makes an input without padding: sentences, cut to the length. */
    private static Map<String, long[][]> inputs(LoadedFolder folder, OpenModel model, int wanted) throws Exception {
        int length = wanted == 0 ? model.predictor().maxLength() : Math.min(wanted, model.predictor().maxLength());
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < length; i++) {
            text.append(SENTENCE);
        }
        Input input = folder.artefacts().pair() ? new Input(SENTENCE, text.toString()) : Input.of(text.toString());
        Encoding encoding = folder.encoder().encode(input, length);
        Batch batch = model.predictor().batch(encoding);
        return batch.inputs();
    }

    private boolean report(int made, int all, double millis) {
        worker.post(() -> {
            done = made;
            planned = all;
            changed.run();
        });
        return !stop.get();
    }

    private static String utc() {
        SimpleDateFormat form = new SimpleDateFormat("yyyy-MM-dd'T'HH:mm:ss'Z'", Locale.ROOT);
        form.setTimeZone(TimeZone.getTimeZone("UTC"));
        return form.format(new Date());
    }

    boolean running() {
        return running;
    }

    int done() {
        return done;
    }

    int planned() {
        return planned;
    }

    String message() {
        return message;
    }

    /** Returns the record, or an empty text while there is none. */
    String json() {
        return json;
    }

    /** Returns what was measured, or null while there is nothing. */
    FileMeasurement measured() {
        return measured;
    }

    SessionFacts facts() {
        return measured.facts();
    }
}
