package org.pocketbert.engines.tflite;

import java.util.Locale;
import org.pocketbert.engines.EngineException;
import org.pocketbert.engines.EngineException.Reason;

/** Translates the library's exceptions, which have no types, into words for the screen. */
final class TfliteFailures {
    private TfliteFailures() {}

    static EngineException of(String file, RuntimeException error) {
        String words = String.valueOf(error.getMessage());
        String lower = words.toLowerCase(Locale.ROOT);
        if (lower.contains("didn't find op") || lower.contains("unsupported op") || lower.contains("op builtin_code out of range")
                || lower.contains("unresolved custom op") || lower.contains("unresolved-ops")) {
            return new EngineException(
                    Reason.UNSUPPORTED_OPERATOR,
                    file + " needs an operator that this TensorFlow Lite lacks. Use a newer library or another file of the folder. "
                            + shortened(words));
        }
        if (lower.contains("out of memory") || lower.contains("failed to allocate") || lower.contains("bad_alloc")) {
            return outOfMemory(file);
        }
        if (lower.contains("not a valid tensorflow lite model") || lower.contains("could not open") || lower.contains("flatbuffer")
                || lower.contains("model provided has model identifier")) {
            return new EngineException(
                    Reason.CORRUPT_FILE,
                    file + " is damaged or not a TFLite file. Copy the artefact folder into the app again. " + shortened(words));
        }
        if (lower.contains("delegate")) {
            return new EngineException(
                    Reason.PROCESSOR, "The processor's driver refused " + file + "; choose CPU. " + shortened(words));
        }
        return new EngineException(Reason.OTHER, "TensorFlow Lite failed on " + file + ". " + shortened(words));
    }

    static EngineException outOfMemory(String file) {
        return new EngineException(
                Reason.OUT_OF_MEMORY,
                "Not enough memory for " + file + ". Close other apps, or use a smaller file or a shorter text.");
    }

    /** Keeps the library's words to a length that a screen shows. */
    private static String shortened(String words) {
        String line = words.replace('\n', ' ').strip();
        return "(" + (line.length() > 300 ? line.substring(0, 300) + "…" : line) + ")";
    }
}
