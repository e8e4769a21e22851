package org.pocketbert.engines.ort;

import ai.onnxruntime.OrtException;
import java.util.Locale;
import org.pocketbert.engines.EngineException;
import org.pocketbert.engines.EngineException.Reason;

/** Translates the library's exceptions into words for the screen. */
final class OrtFailures {
    private OrtFailures() {}

    static EngineException of(String file, OrtException error) {
        String words = String.valueOf(error.getMessage());
        String lower = words.toLowerCase(Locale.ROOT);
        if (lower.contains("bad_alloc") || lower.contains("failed to allocate") || lower.contains("out of memory")) {
            return outOfMemory(file);
        }
        if (lower.contains("not a registered function") || lower.contains("could not find an implementation")
                || lower.contains("no op registered")
                || lower.contains("unsupported model ir version") || lower.contains("only guarantees support for models")
                || error.getCode() == OrtException.OrtErrorCode.ORT_NOT_IMPLEMENTED) {
            return new EngineException(
                    Reason.UNSUPPORTED_OPERATOR,
                    file + " needs an operator that this ONNX Runtime lacks. Use a newer library or another file of the folder. "
                            + shortened(words));
        }
        return switch (error.getCode()) {
            case ORT_INVALID_PROTOBUF, ORT_NO_MODEL, ORT_INVALID_GRAPH, ORT_NO_SUCHFILE -> damaged(file, words);
            case ORT_INVALID_ARGUMENT -> new EngineException(
                    Reason.INPUTS, file + " does not take these inputs. " + shortened(words));
            case ORT_EP_FAIL -> new EngineException(
                    Reason.PROCESSOR, "The processor's driver refused " + file + "; choose CPU. " + shortened(words));
            default -> new EngineException(Reason.OTHER, "ONNX Runtime failed on " + file + ". " + shortened(words));
        };
    }

    static EngineException damaged(String file, String words) {
        return new EngineException(
                Reason.CORRUPT_FILE,
                file + " is damaged or not an ONNX file. Copy the artefact folder into the app again. " + shortened(words));
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
