package org.pocketbert.demo.model;

import android.content.Context;
import java.io.File;
import java.util.List;
import org.pocketbert.artefacts.ArtefactException;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.selftest.SelfTest;
import org.pocketbert.selftest.SelfTestException;
import org.pocketbert.text.TextEncoder;
import org.pocketbert.text.TokenizerEncoder;

/**
 * Holds an artefact folder whose list was read and whose tokenizer passed its self-test.
 *
 * @param folder where the files are
 * @param artefacts the list
 * @param encoder the tokenizer
 * @param candidates files that an engine of the app opens, the default first; at least one
 * @param cache folder for what engines prepare once
 */
public record LoadedFolder(
        AppFolder folder, Artefacts artefacts, TextEncoder encoder, List<Candidate> candidates, File cache) {
    /**
     * Reads the folder of the app.
     *
     * @throws ArtefactException if a file is missing, changed or cannot be used, or no engine of the app opens a model file
     * @throws SelfTestException if the tokenizer does not give the recorded tokens
     */
    public static LoadedFolder read(Context context) throws ArtefactException, SelfTestException {
        AppFolder folder = AppFolder.of(context);
        Artefacts artefacts = Artefacts.read(folder);
        List<Candidate> candidates = Candidate.of(artefacts);
        if (candidates.isEmpty()) {
            throw Artefacts.malformed(Artefacts.FILE_NAME, "no ONNX or TFLite file for the engines of this app is listed.");
        }
        TextEncoder encoder = TokenizerEncoder.read(artefacts);
        new SelfTest(artefacts, candidates.get(0).file()).checkTokenizer(encoder);
        return new LoadedFolder(folder, artefacts, encoder, candidates, new File(context.getCacheDir(), "engines"));
    }

    /**
     * Returns the candidate of a choice.
     *
     * @throws ArtefactException if the folder has no such file for an engine of the app
     */
    public Candidate candidate(ModelChoice choice) throws ArtefactException {
        if (choice.path().isEmpty()) {
            return candidates.get(0);
        }
        StringBuilder paths = new StringBuilder();
        for (Candidate candidate : candidates) {
            if (candidate.file().path().equals(choice.path())) {
                return candidate;
            }
            paths.append(paths.length() == 0 ? "" : ", ").append(candidate.file().path());
        }
        throw Artefacts.malformed(choice.path(), "is no file for the engines of this app; it runs " + paths + ".");
    }

    /** Opens a choice; see {@link OpenModel#open}. */
    public OpenModel open(ModelChoice choice) throws Exception {
        return OpenModel.open(folder, artefacts, encoder, candidate(choice), choice, cache);
    }
}
