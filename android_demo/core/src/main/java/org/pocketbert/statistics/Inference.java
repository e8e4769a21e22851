package org.pocketbert.statistics;

import org.pocketbert.engines.EngineException;

/** Runs one inference, whose time is taken. */
public interface Inference {
    /** Runs the model once; what it answers is not looked at. */
    void run() throws EngineException;
}
