package org.pocketbert.demo;

import android.content.Context;
import org.pocketbert.artefacts.ArtefactException;
import org.pocketbert.engines.EngineException;
import org.pocketbert.selftest.SelfTestException;

/** Words failures for the screen: a sentence in the user's language, then the details. */
final class Messages {
    private Messages() {}

    /** Returns what the screen shows for a failure. */
    static String of(Context context, Throwable failure) {
        if (failure instanceof OutOfMemoryError) {
            return context.getString(R.string.out_of_memory);
        }
        String details = failure.getMessage() == null ? failure.getClass().getSimpleName() : failure.getMessage();
        int sentence = sentence(failure);
        return sentence == 0 ? details : context.getString(sentence) + "\n" + details;
    }

    private static int sentence(Throwable failure) {
        if (failure instanceof EngineException engine) {
            return switch (engine.reason()) {
                case CORRUPT_FILE -> R.string.corrupt_file;
                case UNSUPPORTED_OPERATOR -> R.string.unsupported_operator;
                case OUT_OF_MEMORY -> R.string.out_of_memory;
                case PROCESSOR -> R.string.processor_failed;
                case INPUTS -> R.string.bad_inputs;
                case OTHER -> R.string.engine_failed;
            };
        }
        if (failure instanceof ArtefactException) {
            return R.string.bad_folder;
        }
        if (failure instanceof SelfTestException test) {
            return test.reason() == SelfTestException.Reason.ENGINE ? R.string.self_test_failed : R.string.bad_folder;
        }
        // Texts that a model cannot take have one sentence of their own, choices too; all else is not foreseen.
        boolean worded = failure instanceof org.pocketbert.text.TextException || failure instanceof IllegalArgumentException;
        return worded ? 0 : R.string.unexpected;
    }
}
