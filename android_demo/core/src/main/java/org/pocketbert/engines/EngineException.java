package org.pocketbert.engines;

/** Says why an engine could not open or run a file, in words for the screen. Never carries a vendor's exception type. */
public final class EngineException extends Exception {
    private static final long serialVersionUID = 1;

    /** Names the cause, for apps that react to it. */
    public enum Reason {
        /** The bytes are not a model of this format, or are damaged. */
        CORRUPT_FILE,
        /** The file uses an operator, or a version of one, that this engine lacks. */
        UNSUPPORTED_OPERATOR,
        /** The model or its activations do not fit into memory. */
        OUT_OF_MEMORY,
        /** The processor is not there or its driver refuses the model. */
        PROCESSOR,
        /** Inputs are missing or have shapes that the file does not take. */
        INPUTS,
        /** Everything else; the message has the engine's words. */
        OTHER
    }

    private final Reason reason;

    /** Creates an exception with a message that a person can act on. */
    public EngineException(Reason reason, String message) {
        super(message);
        this.reason = reason;
    }

    /** Returns the cause. */
    public Reason reason() {
        return reason;
    }
}
