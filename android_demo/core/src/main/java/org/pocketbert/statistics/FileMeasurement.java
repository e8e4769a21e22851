package org.pocketbert.statistics;

import java.util.List;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.engines.SessionFacts;
import org.pocketbert.selftest.SelfTest;

/**
 * Holds what was measured with one file in one engine.
 *
 * @param file the model file
 * @param facts engine, processor, threads, load time, first inference and memory
 * @param report what the self-test found
 * @param cells timings, one entry for each length
 * @param sustained a run without a pause, one point for each second; empty where none was made
 */
public record FileMeasurement(
        ModelFile file, SessionFacts facts, SelfTest.Report report, List<Cell> cells, List<Sustained.Point> sustained) {}
