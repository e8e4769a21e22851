package org.pocketbert.demo.model;

import android.content.Intent;
import android.os.Bundle;
import org.pocketbert.engines.Processor;

/**
 * Says which file runs where.
 *
 * @param path path of the model file in the artefact folder; empty for the first one that an engine of the app runs
 * @param processor where it runs
 * @param threads number of CPU threads
 */
public record ModelChoice(String path, Processor processor, int threads) {
    /** Name of the file in intents and saved state; also {@code adb shell am start --es model onnx/model_int8.onnx}. */
    public static final String MODEL = "model";
    /** Name of the processor there: cpu, gpu or npu. */
    public static final String PROCESSOR = "processor";
    /** Name of the number of threads there. */
    public static final String THREADS = "threads";

    /** Most threads that are accepted: phones have fewer cores. */
    public static final int MAX_THREADS = 64;

    /** Returns what an app opens first. */
    public static ModelChoice first() {
        return new ModelChoice("", Processor.CPU, 1);
    }

    /**
     * Reads a choice from an intent or saved state; what is not given is as in {@link #first()}.
     *
     * @throws IllegalArgumentException if a value is not allowed; the message names it and what is allowed
     */
    public static ModelChoice from(Bundle values) {
        if (values == null) {
            return first();
        }
        int threads = values.getInt(THREADS, 1);
        if (threads < 1 || threads > MAX_THREADS) {
            throw new IllegalArgumentException("threads is " + threads + "; allowed: 1 to " + MAX_THREADS + ".");
        }
        String wanted = values.getString(PROCESSOR, "cpu");
        for (Processor processor : Processor.values()) {
            if (processor.name().equalsIgnoreCase(wanted)) {
                return new ModelChoice(values.getString(MODEL, ""), processor, threads);
            }
        }
        throw new IllegalArgumentException("processor is '" + wanted + "'; allowed: cpu, gpu, npu.");
    }

    /** Writes the choice for {@link #from}. */
    public void into(Bundle values) {
        values.putString(MODEL, path);
        values.putString(PROCESSOR, processor.name());
        values.putInt(THREADS, threads);
    }

    /** Writes the choice into an intent. */
    public Intent into(Intent intent) {
        Bundle values = new Bundle();
        into(values);
        return intent.putExtras(values);
    }
}
