package org.pocketbert.demo.views;

import android.content.Context;
import android.content.res.TypedArray;
import android.graphics.Typeface;
import android.text.SpannableString;
import android.text.Spanned;
import android.text.style.BackgroundColorSpan;
import android.view.LayoutInflater;
import android.view.View;
import android.widget.LinearLayout;
import android.widget.ProgressBar;
import android.widget.TextView;
import java.util.ArrayList;
import java.util.List;
import org.pocketbert.demo.R;
import org.pocketbert.demo.Result;

/** Builds the views of a result: bars for scores, coloured pieces for spans and answers. */
public final class ResultViews {
    private static final int WHOLE_BAR = 1000;

    private final LinearLayout into;
    private final LayoutInflater inflater;
    private final List<String> colouredNames = new ArrayList<>();

    private ResultViews(LinearLayout into) {
        this.into = into;
        this.inflater = LayoutInflater.from(into.getContext());
    }

    /** Replaces what the layout holds with the views of a result; with null it stays empty. */
    public static void show(LinearLayout into, Result result) {
        into.removeAllViews();
        if (result != null) {
            new ResultViews(into).add(result);
        }
    }

    private void add(Result result) {
        if (result instanceof Result.Bars bars) {
            addWords(bars.title());
            bars.bars().forEach(this::addBar);
        } else if (result instanceof Result.Marked marked) {
            addMarked(marked);
        } else if (result instanceof Result.Words words) {
            addWords(words.text());
        } else if (result instanceof Result.Named named) {
            addText(R.layout.heading, named.name());
            add(named.result());
        } else if (result instanceof Result.Several several) {
            several.results().forEach(this::add);
        }
    }

    private TextView addWords(CharSequence text) {
        if (text.length() == 0) {
            return null;
        }
        return addText(R.layout.words, text);
    }

    private TextView addText(int layout, CharSequence text) {
        TextView view = (TextView) inflater.inflate(layout, into, false);
        view.setText(text);
        into.addView(view);
        return view;
    }

    private void addBar(Result.Bar bar) {
        Context context = into.getContext();
        View row = inflater.inflate(R.layout.bar, into, false);
        TextView name = row.findViewById(R.id.name);
        TextView figure = row.findViewById(R.id.figure);
        ProgressBar progress = row.findViewById(R.id.bar);
        name.setText(bar.name());
        figure.setText(bar.figure());
        progress.setMax(WHOLE_BAR);
        progress.setProgress((int) Math.round(WHOLE_BAR * Math.max(0, Math.min(1, bar.value()))));
        if (bar.chosen()) {
            name.setTypeface(Typeface.DEFAULT_BOLD);
            figure.setTypeface(Typeface.DEFAULT_BOLD);
        }
        int spoken = bar.chosen() ? R.string.bar_spoken_chosen : R.string.bar_spoken;
        row.setContentDescription(context.getString(spoken, bar.name(), bar.figure()));
        into.addView(row);
    }

    private void addMarked(Result.Marked marked) {
        addWords(marked.title());
        SpannableString text = new SpannableString(marked.text());
        StringBuilder spoken = new StringBuilder(marked.title());
        for (Result.Mark mark : marked.marks()) {
            text.setSpan(
                    new BackgroundColorSpan(colour(mark.name())), mark.start(), mark.end(), Spanned.SPAN_EXCLUSIVE_EXCLUSIVE);
            if (!mark.name().isEmpty()) {
                String piece = marked.text().substring(mark.start(), mark.end());
                spoken.append(spoken.length() == 0 ? "" : ". ")
                        .append(into.getContext().getString(R.string.span_spoken, piece, mark.name()));
            }
        }
        TextView view = addWords(text);
        if (view != null && spoken.length() > 0) {
            view.setContentDescription(spoken);
        }
        for (Result.Mark mark : marked.marks()) {
            if (!mark.name().isEmpty()) {
                String piece = marked.text().substring(mark.start(), mark.end());
                SpannableString line = new SpannableString(mark.name() + "  " + piece + "  " + mark.figure());
                line.setSpan(
                        new BackgroundColorSpan(colour(mark.name())), 0, mark.name().length(), Spanned.SPAN_EXCLUSIVE_EXCLUSIVE);
                addWords(line);
            }
        }
    }

    /** Returns one colour for each name, in the order in which names come; colours repeat after the last. */
    private int colour(String name) {
        if (!colouredNames.contains(name)) {
            colouredNames.add(name);
        }
        TypedArray colours = into.getResources().obtainTypedArray(R.array.marks);
        try {
            return colours.getColor(colouredNames.indexOf(name) % colours.length(), 0);
        } finally {
            colours.recycle();
        }
    }
}
