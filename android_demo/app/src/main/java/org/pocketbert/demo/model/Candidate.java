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
    /** Returns the engines whose libraries are in the app for this CPU. */
    public static List<Engine> engines() {
        List<Engine> engines = new ArrayList<>();
        for (Engine engine : List.of(new OrtEngine(), new TfliteEngine(Build.VERSION.SDK_INT))) {
            if (engine.available()) {
                engines.add(engine);
            }
        }
        return engines;
    }

    /** Returns every pair of a folder, the folder's default file first. */
    public static List<Candidate> of(Artefacts artefacts) {
        List<Candidate> candidates = new ArrayList<>();
        List<Engine> engines = engines();
        for (ModelFile file : artefacts.models()) {
            for (Engine engine : engines) {
                if (file.isFor(List.of(engine.format()), engine.runtimes())) {
                    candidates.add(file.standard() ? 0 : candidates.size(), new Candidate(file, engine));
                }
            }
        }
        return List.copyOf(candidates);
    }

    /** Returns what a list shows: name of the file and engine. */
    public String title() {
        return file.path().substring(file.path().lastIndexOf('/') + 1) + " · " + engine.name();
    }
}
