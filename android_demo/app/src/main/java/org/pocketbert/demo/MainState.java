package org.pocketbert.demo;

import android.content.Context;
import android.os.Bundle;
import java.util.ArrayList;
import java.util.List;
import java.util.StringJoiner;
import org.pocketbert.answers.Embedding;
import org.pocketbert.artefacts.NamedHead;
import org.pocketbert.artefacts.Processing;
import org.pocketbert.artefacts.Task;
import org.pocketbert.demo.model.Candidate;
import org.pocketbert.demo.model.LoadedFolder;
import org.pocketbert.demo.model.ModelChoice;
import org.pocketbert.demo.model.OpenModel;
import org.pocketbert.engines.SessionFacts;
import org.pocketbert.text.Input;

/**
 * Holds what the main screen shows, and the model behind it. It outlives the activity when the phone is turned.
 *
 * <p>All methods are called on the main thread; files are read and models run on a {@link Worker}.
 */
final class MainState {
    /** After the last key press, a prediction waits this long, in milliseconds. */
    static final long DEBOUNCE_MILLIS = 150;

    private static final double BYTES_PER_MEGABYTE = 1e6;

    private final Context context;
    private final Worker worker = new Worker();
    private final Runnable pending = this::predict;
    private Runnable changed = () -> {};
    private LoadedFolder folder;
    private OpenModel model; // touched by jobs of the worker only
    private ModelChoice choice;
    private boolean ready;
    private String message = "";
    private String notice = "";
    private String timing = "";
    private Result result;
    private Results results;
    private String first = "";
    private String second = "";
    private int newest;

    /** Creates the state and begins to open a model. */
    MainState(Context context, ModelChoice choice) {
        this.context = context.getApplicationContext();
        this.choice = choice;
        notice = context.getString(R.string.opening, "");
        worker.run(() -> LoadedFolder.read(this.context), loaded -> {
            folder = loaded;
            open(this.choice);
        }, this::fail);
    }

    /** Says whom to call when something has changed; null for nobody. */
    void attach(Runnable listener) {
        changed = listener == null ? () -> {} : listener;
        changed.run();
    }

    /** Opens another file, processor or number of threads; a choice that is open already is left. */
    void choose(ModelChoice wanted) {
        if (folder != null && !wanted.equals(choice)) {
            open(wanted);
        }
    }

    private void open(ModelChoice wanted) {
        choice = wanted;
        ready = false;
        message = "";
        result = null;
        timing = "";
        String title = wanted.path().isEmpty() ? folder.candidates().get(0).title() : wanted.path();
        notice = context.getString(R.string.opening, title);
        changed.run();
        int mine = ++newest;
        worker.run(() -> {
            closeModel();
            model = folder.open(wanted);
            return new Results(context, folder.encoder().token(Math.max(0, folder.encoder().maskId())), sentences(), vectors());
        }, made -> {
            if (mine == newest) {
                choice = new ModelChoice(candidate().file().path(), wanted.processor(), wanted.threads());
                results = made;
                ready = true;
                predict();
            }
        }, failure -> {
            if (mine == newest) {
                fail(failure);
            }
        });
    }

    /** Returns stored sentences for models that make vectors. */
    private List<String> sentences() {
        return folder.artefacts().task() == Task.FEATURE_EXTRACTION
                ? List.of(context.getResources().getStringArray(R.array.sentences))
                : List.of();
    }

    private List<float[]> vectors() throws Exception {
        List<float[]> vectors = new ArrayList<>();
        for (String sentence : sentences()) {
            if (model.answer(Input.of(sentence)).answer() instanceof Embedding embedding) {
                vectors.add(embedding.vector());
            }
        }
        return vectors;
    }

    /** Takes what was typed; the answer follows when no key was pressed for a moment. */
    void type(String typedFirst, String typedSecond) {
        if (typedFirst.equals(first) && typedSecond.equals(second)) {
            return;
        }
        first = typedFirst;
        second = typedSecond;
        worker.forget(pending);
        worker.postLater(pending, DEBOUNCE_MILLIS);
    }

    private void predict() {
        if (!ready) {
            return; // Opening ends with a prediction.
        }
        boolean pair = pair();
        if (first.isBlank() || pair && second.isBlank()) {
            newest++;
            show(null, "", "");
            return;
        }
        Input input = pair ? new Input(first, second) : Input.of(first);
        int mine = ++newest;
        worker.run(() -> model.answer(input), timed -> {
            if (mine == newest) { // A later key press has a job of its own.
                Processing processing = folder.artefacts().processing();
                int said = processing.keepsEnd() ? R.string.truncated_left : R.string.truncated;
                String cut = context.getString(said, processing.maxLength());
                show(results.of(input, timed.answer()), timing(timed), timed.answer().truncated() ? cut : "");
            }
        }, failure -> {
            if (mine == newest) {
                result = null;
                timing = "";
                fail(failure);
            }
        });
    }

    private void show(Result shown, String time, String said) {
        result = shown;
        timing = time;
        message = said;
        notice = shown == null
                ? context.getString(R.string.self_test_passed, model.report().rows()) + "\n"
                        + context.getString(R.string.type_something)
                : "";
        changed.run();
    }

    private String timing(OpenModel.Timed timed) {
        SessionFacts facts = model.facts();
        String memory = facts.memoryBytes() < 0
                ? context.getString(R.string.unknown)
                : context.getString(R.string.memory, facts.memoryBytes() / BYTES_PER_MEGABYTE);
        return context.getString(
                R.string.timing, timed.millis(), timed.tokens(), facts.loadMillis(), facts.firstRunMillis(), memory);
    }

    private void fail(Throwable failure) {
        message = Messages.of(context, failure);
        notice = "";
        changed.run();
    }

    /** Writes what a later process needs to show the same. */
    void save(Bundle state) {
        choice.into(state);
    }

    /** Releases the model; the state is not used afterwards. */
    void end() {
        attach(null);
        worker.forget(pending);
        worker.end(this::closeModel);
    }

    private void closeModel() {
        if (model != null) {
            model.close();
            model = null;
        }
    }

    /** Returns the pairs of file and engine, or an empty list before the folder was read. */
    List<Candidate> candidates() {
        return folder == null ? List.of() : folder.candidates();
    }

    /** Returns the candidate of the choice; only after the folder was read. */
    Candidate candidate() {
        for (Candidate candidate : folder.candidates()) {
            if (candidate.file().path().equals(choice.path())) {
                return candidate;
            }
        }
        return folder.candidates().get(0);
    }

    /** Returns whether two texts are asked for. */
    boolean pair() {
        return folder != null && folder.artefacts().pair();
    }

    /** Returns the task, or null before the folder was read. */
    Task task() {
        return folder == null ? null : folder.artefacts().task();
    }

    /** Returns the token for a hidden word; empty before the folder was read. */
    String mask() {
        return folder == null || folder.encoder().maskId() < 0 ? "" : folder.encoder().token(folder.encoder().maskId());
    }

    /** Returns name and task of the model, of several heads that of each; empty before the folder was read. */
    String title() {
        if (folder == null) {
            return "";
        }
        StringJoiner tasks = new StringJoiner(", ", folder.artefacts().name() + " · ", "");
        for (NamedHead head : folder.artefacts().heads()) {
            tasks.add(head.name() + (head.name().isEmpty() ? "" : ": ") + head.task().hubName());
        }
        return tasks.toString();
    }

    ModelChoice choice() {
        return choice;
    }

    String message() {
        return message;
    }

    String notice() {
        return notice;
    }

    String timing() {
        return timing;
    }

    Result result() {
        return result;
    }

    boolean ready() {
        return ready;
    }
}
