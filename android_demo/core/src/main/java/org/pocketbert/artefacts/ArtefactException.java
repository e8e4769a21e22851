package org.pocketbert.artefacts;

/** Says why an artefact folder cannot be used, in words for the screen: what is wrong, what is allowed, what to do. */
public final class ArtefactException extends Exception {
    private static final long serialVersionUID = 1;

    /** Names the cause, for apps that react to it or word it in another language. */
    public enum Reason {
        /** A file that is listed or always needed is not there. */
        MISSING_FILE,
        /** A file is not the listed one: its size or sha256 differs. */
        WRONG_DIGEST,
        /** The list was written in another major schema. */
        UNKNOWN_SCHEMA,
        /** A file is not what its name says, or contradicts another one. */
        MALFORMED,
        /** A file is larger than is ever read. */
        TOO_LARGE,
        /** The storage failed while a file was read. */
        UNREADABLE
    }

    private final Reason reason;
    private final String path;

    /**
     * Creates an exception.
     *
     * @param reason the cause
     * @param path the file that is wrong
     * @param what what is wrong with it and what is allowed, one sentence
     * @param fix what to do, one sentence
     */
    public ArtefactException(Reason reason, String path, String what, String fix) {
        super(path + ": " + what + " " + fix);
        this.reason = reason;
        this.path = path;
    }

    /** Returns the cause. */
    public Reason reason() {
        return reason;
    }

    /** Returns the file that is wrong, by its path in the folder. */
    public String path() {
        return path;
    }
}
