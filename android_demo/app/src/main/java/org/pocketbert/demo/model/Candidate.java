package org.pocketbert.demo.model;

import android.os.Build;
import java.util.ArrayList;
import java.util.List;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.engines.Engine;
import org.pocketbert.engines.ort.OrtEngine;
import org.pocketbert.engines.tflite.TfliteEngine;

/**
 * Pairs a model file with an engine of the app that opens its format.
 *
 * @param file the file
 * @param engine the engine
 */
public record Candidate(ModelFile file, Engine engine) {
    /** Returns the engines of the app. */
    public static List<Engine> engines() {
        return List.of(new OrtEngine(), new TfliteEngine(Build.VERSION.SDK_INT));
    }

    /** Returns every pair of a folder, the folder's default file first. */
    public static List<Candidate> of(Artefacts artefacts) {
        List<Candidate> candidates = new ArrayList<>();
        for (ModelFile file : artefacts.models()) {
            for (Engine engine : engines()) {
                if (file.isFor(List.of(engine.format()), engine.runtimes())) {
                    candidates.add(file.standard() ? 0 : candidates.size(), new Candidate(file, engine));
                }
            }
        }
        return List.copyOf(candidates);
    }

    /** Returns what a list shows: file and engine. */
    public String title() {
        return file.path() + " · " + engine.name();
    }
}
