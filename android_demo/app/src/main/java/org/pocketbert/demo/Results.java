package org.pocketbert.demo;

import android.content.Context;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.pocketbert.answers.Answer;
import org.pocketbert.answers.Embedding;
import org.pocketbert.answers.Excerpt;
import org.pocketbert.answers.Filled;
import org.pocketbert.answers.FoundSpan;
import org.pocketbert.answers.Guess;
import org.pocketbert.answers.HeadAnswers;
import org.pocketbert.answers.Labelling;
import org.pocketbert.answers.Neighbours;
import org.pocketbert.answers.Prediction;
import org.pocketbert.answers.Spans;
import org.pocketbert.answers.Value;
import org.pocketbert.text.Input;

/** Words the answers of all tasks for the screen. */
final class Results {
    private static final int MOST_BARS = 20;
    private static final int MOST_GUESSES = 5;
    private static final double PERCENT = 100;

    private final Context context;
    private final String mask;
    private final List<String> sentences;
    private final List<float[]> vectors;

    /**
     * Creates a writer.
     *
     * @param mask the token for a hidden word; empty for tasks other than fill-mask
     * @param sentences stored sentences that vectors are compared with
     * @param vectors their vectors
     */
    Results(Context context, String mask, List<String> sentences, List<float[]> vectors) {
        this.context = context;
        this.mask = mask;
        this.sentences = sentences;
        this.vectors = vectors;
    }

    Result of(Input input, Answer answer) {
        if (answer instanceof Prediction prediction) {
            String title = prediction.unknown() ? context.getString(R.string.unknown) : "";
            List<String> chosen = prediction.unknown() ? List.of() : List.of(prediction.label());
            return new Result.Bars(title, bars(prediction.labels(), prediction.scores(), chosen));
        }
        if (answer instanceof Labelling labelling) {
            return new Result.Bars("", bars(labelling.labels(), labelling.scores(), labelling.given()));
        }
        if (answer instanceof Value value) {
            return new Result.Words(context.getString(R.string.value, value.value()));
        }
        if (answer instanceof Spans spans) {
            return marked(input.first(), spans);
        }
        if (answer instanceof Excerpt excerpt) {
            return marked(input.second(), excerpt);
        }
        if (answer instanceof Filled filled) {
            return guesses(filled);
        }
        if (answer instanceof Embedding embedding) {
            return neighbours(embedding);
        }
        if (answer instanceof HeadAnswers heads) {
            List<Result> parts = new ArrayList<>();
            heads.answers().forEach((name, own) -> parts.add(new Result.Named(name, of(input, own))));
            return new Result.Several(parts);
        }
        throw new IllegalStateException("no view for " + answer.getClass().getSimpleName());
    }

    private List<Result.Bar> bars(List<String> names, double[] scores, List<String> chosen) {
        List<Integer> order = new ArrayList<>();
        for (int i = 0; i < scores.length; i++) {
            order.add(i);
        }
        order.sort((a, b) -> Double.compare(scores[b], scores[a]));
        List<Result.Bar> bars = new ArrayList<>();
        for (int i : order.subList(0, Math.min(MOST_BARS, order.size()))) {
            bars.add(new Result.Bar(names.get(i), scores[i], percent(scores[i]), chosen.contains(names.get(i))));
        }
        return bars;
    }

    private String percent(double share) {
        return context.getString(R.string.percent, PERCENT * share);
    }

    private Result marked(String text, Spans spans) {
        List<Result.Mark> marks = new ArrayList<>();
        for (FoundSpan span : spans.spans()) {
            int start = text.offsetByCodePoints(0, span.start());
            int end = text.offsetByCodePoints(start, span.end() - span.start());
            marks.add(new Result.Mark(start, end, span.label(), percent(span.score())));
        }
        return new Result.Marked(marks.isEmpty() ? context.getString(R.string.no_spans) : "", text, marks);
    }

    private Result marked(String text, Excerpt excerpt) {
        if (excerpt.text().isEmpty()) {
            return new Result.Marked(context.getString(R.string.no_answer), text, List.of());
        }
        int start = text.offsetByCodePoints(0, excerpt.start());
        int end = text.offsetByCodePoints(start, excerpt.end() - excerpt.start());
        String title = context.getString(R.string.answer, excerpt.text());
        return new Result.Marked(title, text, List.of(new Result.Mark(start, end, "", "")));
    }

    private Result guesses(Filled filled) {
        if (filled.places().isEmpty()) {
            return new Result.Words(context.getString(R.string.no_mask, mask));
        }
        List<Result> places = new ArrayList<>();
        for (List<Guess> guesses : filled.places()) {
            List<Result.Bar> bars = new ArrayList<>();
            for (Guess guess : guesses.subList(0, Math.min(MOST_GUESSES, guesses.size()))) {
                String name = guess.text().isBlank() ? guess.token() : guess.text().strip();
                bars.add(new Result.Bar(name, guess.score(), percent(guess.score()), bars.isEmpty()));
            }
            places.add(new Result.Bars(context.getString(R.string.place, places.size() + 1), bars));
        }
        return new Result.Several(places);
    }

    private Result neighbours(Embedding embedding) {
        List<Result.Bar> bars = new ArrayList<>();
        for (Neighbours.Neighbour near : Neighbours.nearest(embedding.vector(), vectors, MOST_BARS)) {
            String figure = String.format(Locale.getDefault(), "%.3f", near.cosine());
            bars.add(new Result.Bar(sentences.get(near.index()), near.cosine(), figure, bars.isEmpty()));
        }
        return new Result.Several(List.of(
                new Result.Words(context.getString(R.string.vector, embedding.vector().length)),
                new Result.Bars(context.getString(R.string.nearest), bars)));
    }
}
