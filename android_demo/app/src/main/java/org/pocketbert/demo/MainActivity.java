package org.pocketbert.demo;

import android.app.Activity;
import android.content.Intent;
import android.os.Bundle;
import android.text.Editable;
import android.text.TextWatcher;
import android.view.View;
import android.widget.AdapterView;
import android.widget.ArrayAdapter;
import android.widget.EditText;
import android.widget.LinearLayout;
import android.widget.Spinner;
import android.widget.TextView;
import java.util.ArrayList;
import java.util.List;
import org.pocketbert.artefacts.Task;
import org.pocketbert.demo.model.Candidate;
import org.pocketbert.demo.model.ModelChoice;
import org.pocketbert.demo.views.ResultViews;
import org.pocketbert.engines.Processor;

/** Shows the model's answer while a text is typed, and lets file, engine, processor and threads be chosen. */
public final class MainActivity extends Activity {
    private MainState state;
    private EditText first;
    private EditText second;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        setContentView(R.layout.main);
        first = findViewById(R.id.first);
        second = findViewById(R.id.second);
        state = (MainState) getLastNonConfigurationInstance();
        if (state == null) {
            state = new MainState(this, saved == null ? ModelChoice.first() : ModelChoice.from(saved));
        }
        onChange(first, this::typed);
        onChange(second, this::typed);
        onChosen(R.id.file, this::chosen);
        onChosen(R.id.processor, this::chosen);
        onChosen(R.id.threads, this::chosen);
        findViewById(R.id.benchmark).setOnClickListener(view ->
                startActivity(state.choice().into(new Intent(this, BenchmarkActivity.class))));
        state.attach(this::show);
    }

    @Override
    protected void onRestoreInstanceState(Bundle saved) {
        super.onRestoreInstanceState(saved); // The two fields keep their texts themselves.
        typed();
    }

    @Override
    protected void onSaveInstanceState(Bundle out) {
        super.onSaveInstanceState(out);
        state.save(out);
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

    private void typed() {
        state.type(first.getText().toString(), second.getText().toString());
    }

    private void chosen() {
        List<Candidate> candidates = state.candidates();
        int file = spinner(R.id.file).getSelectedItemPosition();
        if (file < 0 || file >= candidates.size()) {
            return;
        }
        List<Processor> processors = candidates.get(file).engine().processors();
        int processor = spinner(R.id.processor).getSelectedItemPosition();
        Processor wanted = processor >= 0 && processor < processors.size() ? processors.get(processor) : Processor.CPU;
        Object threads = spinner(R.id.threads).getSelectedItem();
        state.choose(new ModelChoice(
                candidates.get(file).file().path(), wanted, threads == null ? 1 : Integer.parseInt(threads.toString())));
    }

    private void show() {
        this.<TextView>findViewById(R.id.model).setText(state.title());
        TextView message = findViewById(R.id.message);
        message.setText(state.message());
        message.setVisibility(state.message().isEmpty() ? View.GONE : View.VISIBLE);
        String below = state.timing().isEmpty() ? state.notice() : state.timing();
        this.<TextView>findViewById(R.id.timing).setText(below);
        ResultViews.show(this.<LinearLayout>findViewById(R.id.result), state.result());
        findViewById(R.id.benchmark).setEnabled(state.ready());
        showFields();
        showChoices();
    }

    private void showFields() {
        Task task = state.task();
        boolean asks = task == Task.QUESTION_ANSWERING;
        String only = task == Task.FILL_MASK ? getString(R.string.masked, state.mask()) : getString(R.string.text);
        this.<TextView>findViewById(R.id.first_label).setText(asks ? getString(R.string.question) : only);
        this.<TextView>findViewById(R.id.second_label).setText(asks ? R.string.context : R.string.text_pair);
        int visible = state.pair() ? View.VISIBLE : View.GONE;
        findViewById(R.id.second_label).setVisibility(visible);
        second.setVisibility(visible);
    }

    private void showChoices() {
        if (state.candidates().isEmpty()) {
            return;
        }
        List<String> files = new ArrayList<>();
        for (Candidate candidate : state.candidates()) {
            files.add(candidate.title());
        }
        fill(R.id.file, files, state.candidate().title());
        List<String> processors = new ArrayList<>();
        for (Processor processor : state.candidate().engine().processors()) {
            processors.add(processor.name());
        }
        fill(R.id.processor, processors, state.choice().processor().name());
        List<String> threads = new ArrayList<>();
        int most = Math.max(Runtime.getRuntime().availableProcessors(), state.choice().threads());
        for (int count = 1; count <= most; count++) {
            threads.add(String.valueOf(count));
        }
        fill(R.id.threads, threads, String.valueOf(state.choice().threads()));
    }

    /** Gives a spinner its items, unless it has them, and selects one. */
    private void fill(int id, List<String> items, String selected) {
        Spinner spinner = spinner(id);
        List<String> shown = new ArrayList<>();
        for (int i = 0; i < spinner.getCount(); i++) {
            shown.add(spinner.getItemAtPosition(i).toString());
        }
        if (!shown.equals(items)) {
            ArrayAdapter<String> adapter = new ArrayAdapter<>(this, android.R.layout.simple_spinner_item, items);
            adapter.setDropDownViewResource(android.R.layout.simple_spinner_dropdown_item);
            spinner.setAdapter(adapter);
        }
        if (spinner.getSelectedItemPosition() != items.indexOf(selected)) {
            spinner.setSelection(items.indexOf(selected));
        }
    }

    private Spinner spinner(int id) {
        return findViewById(id);
    }

    private void onChosen(int id, Runnable action) {
        spinner(id).setOnItemSelectedListener(new AdapterView.OnItemSelectedListener() {
            @Override
            public void onItemSelected(AdapterView<?> parent, View view, int position, long row) {
                action.run();
            }

            @Override
            public void onNothingSelected(AdapterView<?> parent) {
                // Happens while a list is replaced; the selection that follows counts.
            }
        });
    }

    private static void onChange(EditText field, Runnable action) {
        field.addTextChangedListener(new TextWatcher() {
            @Override
            public void beforeTextChanged(CharSequence text, int start, int count, int after) {}

            @Override
            public void onTextChanged(CharSequence text, int start, int before, int count) {}

            @Override
            public void afterTextChanged(Editable text) {
                action.run();
            }
        });
    }
}
