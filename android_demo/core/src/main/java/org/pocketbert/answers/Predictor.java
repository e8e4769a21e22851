package org.pocketbert.answers;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.pocketbert.answers.heads.Head;
import org.pocketbert.answers.heads.Heads;
import org.pocketbert.artefacts.ArtefactException;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.Configuration;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.artefacts.NamedHead;
import org.pocketbert.artefacts.Processing;
import org.pocketbert.artefacts.Task;
import org.pocketbert.engines.EngineException;
import org.pocketbert.engines.Session;
import org.pocketbert.engines.Tensor;
import org.pocketbert.text.Batch;
import org.pocketbert.text.Input;
import org.pocketbert.text.Lengths;
import org.pocketbert.text.TextEncoder;
import org.pocketbert.text.TextException;
import org.pocketbert.tokenizers.Encoding;

/** Answers texts with an open model file. As little thread-safe as its session. */
public final class Predictor {
    private final Artefacts artefacts;
    private final TextEncoder encoder;
    private final Session session;
    private final Head head;
    private final Readout readout;
    private final Configuration configuration;

    /**
     * Joins the parts.
     *
     * @param artefacts the folder
     * @param encoder its tokenizer
     * @param file one of its model files
     * @param session the same file, open; it is not closed here
     * @throws ArtefactException if {@code config.json} is missing or names other labels
     */
    public Predictor(Artefacts artefacts, TextEncoder encoder, ModelFile file, Session session)
            throws ArtefactException {
        this.artefacts = artefacts;
        this.encoder = encoder;
        this.session = session;
        configuration = Configuration.read(artefacts);
        head = Heads.of(artefacts, file, encoder);
        readout = new Readout(artefacts.heads(), encoder.maskId());
    }

    /** Returns the longest input in tokens that the folder allows and the file takes. */
    public int maxLength() {
        return Lengths.longest(session.facts().lengths(), artefacts.processing().maxLength());
    }

    /** Returns the tokenizer. */
    public TextEncoder encoder() {
        return encoder;
    }

    /**
     * Answers one input.
     *
     * @throws TextException if the task cannot take it
     * @throws EngineException if the engine fails
     * @throws AnswerException if the outputs are not those of such a model
     */
    public Answer predict(Input input) throws TextException, EngineException, AnswerException {
        List<Encoding> rows = encode(input);
        List<Matrix> outputs = new ArrayList<>();
        boolean scored = false;
        for (Encoding row : rows) { // one at a time: dynamic int8 depends on what else is in a batch
            Batch batch = batch(row);
            Map<String, Tensor> found = session.run(batch.inputs());
            scored = readout.isScored(found);
            outputs.add(readout.matrix(found, batch, 0));
        }
        return head.answer(input, rows, outputs, scored);
    }

    /**
     * Tokenizes one input as the task reads it, behind the folder's default prompt.
     *
     * @return one row, or the windows of a long context
     * @throws TextException if the task cannot take it
     */
    public List<Encoding> encode(Input input) throws TextException {
        for (NamedHead one : artefacts.heads()) {
            input.check(one.task());
        }
        Processing processing = artefacts.processing();
        if (artefacts.task() == Task.QUESTION_ANSWERING) {
            return encoder.windows(input, maxLength(), processing.stride());
        }
        return List.of(encoder.encode(input.behind(processing.prompt()), maxLength()));
    }

    /**
     * Runs one tokenized input and returns its outputs without padding.
     *
     * @throws TextException if it is longer than the file takes
     * @throws EngineException if the engine fails
     * @throws AnswerException if the outputs are not those of such a model
     */
    public Matrix run(Encoding row) throws TextException, EngineException, AnswerException {
        Batch batch = batch(row);
        return readout.matrix(session.run(batch.inputs()), batch, 0);
    }

    /**
     * Pads one tokenized input to the smallest length that the file takes.
     *
     * @throws TextException if it is longer than the file takes
     */
    public Batch batch(Encoding row) throws TextException {
        int length = Lengths.fitting(session.facts().lengths(), row.length());
        return Batch.of(List.of(row), length, configuration.padId(), artefacts.processing().padsLeft());
    }
}
