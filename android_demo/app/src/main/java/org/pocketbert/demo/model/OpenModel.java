package org.pocketbert.demo.model;

import java.io.File;
import java.io.IOException;
import org.pocketbert.answers.Answer;
import org.pocketbert.answers.AnswerException;
import org.pocketbert.answers.Predictor;
import org.pocketbert.artefacts.ArtefactException;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.engines.EngineException;
import org.pocketbert.engines.Session;
import org.pocketbert.engines.SessionFacts;
import org.pocketbert.engines.SessionOptions;
import org.pocketbert.selftest.SelfTest;
import org.pocketbert.selftest.SelfTestException;
import org.pocketbert.text.Input;
import org.pocketbert.text.TextEncoder;
import org.pocketbert.text.TextException;
import org.pocketbert.tokenizers.Encoding;

/** Holds a model file that is open and has passed the self-test. Used by one thread at a time. */
public final class OpenModel implements AutoCloseable {
    private static final double NANOS_PER_MILLI = 1e6;

    private final Session session;
    private final Predictor predictor;
    private final SelfTest.Report report;

    private OpenModel(Session session, Predictor predictor, SelfTest.Report report) {
        this.session = session;
        this.predictor = predictor;
        this.report = report;
    }

    /**
     * Holds an answer and what it took.
     *
     * @param answer the answer
     * @param tokens number of tokens of the text, special ones included; of all windows where there are several
     * @param millis time for tokens, inference and answer, in milliseconds
     */
    public record Timed(Answer answer, int tokens, double millis) {}

    /**
     * Compares a file with its digest, opens it, and runs the self-test.
     *
     * @param cache folder for what the engine prepares once
     * @throws ArtefactException if the file is missing or not the listed one
     * @throws EngineException if the engine cannot open or run it
     * @throws SelfTestException if its answers are not the recorded ones
     * @throws IOException if the file cannot be read
     */
    public static OpenModel open(
            AppFolder folder, Artefacts artefacts, TextEncoder encoder, Candidate candidate, ModelChoice choice, File cache)
            throws ArtefactException, EngineException, SelfTestException, IOException {
        artefacts.verify(candidate.file().path());
        SessionOptions options = new SessionOptions(choice.processor(), choice.threads(), cache);
        Session session = candidate.engine().open(folder.source(candidate.file().file()), options);
        OpenModel opened = null;
        try {
            Predictor predictor = new Predictor(artefacts, encoder, candidate.file(), session);
            SelfTest test = new SelfTest(artefacts, candidate.file());
            SelfTest.Report report = test.check(predictor, session.facts().engine());
            opened = new OpenModel(session, predictor, report);
            return opened;
        } finally {
            if (opened == null) {
                session.close();
            }
        }
    }

    /** Answers one input. */
    public Timed answer(Input input) throws TextException, EngineException, AnswerException {
        int tokens = 0;
        for (Encoding row : predictor.encode(input)) {
            tokens += row.ids().length;
        }
        long start = System.nanoTime();
        Answer answer = predictor.predict(input);
        return new Timed(answer, tokens, (System.nanoTime() - start) / NANOS_PER_MILLI);
    }

    /** Returns the tokenizer and the runs of single inputs, for the benchmark. */
    public Predictor predictor() {
        return predictor;
    }

    /** Returns the session, for the benchmark. */
    public Session session() {
        return session;
    }

    /** Returns what opening cost. */
    public SessionFacts facts() {
        return session.facts();
    }

    /** Returns what the self-test found. */
    public SelfTest.Report report() {
        return report;
    }

    @Override
    public void close() {
        session.close();
    }
}
