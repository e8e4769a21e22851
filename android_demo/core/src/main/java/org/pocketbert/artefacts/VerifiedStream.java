package org.pocketbert.artefacts;

import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/**
 * Passes the bytes of a listed file on and compares their number and sha256 with the list.
 *
 * <p>Reading to the end, or {@link #finish}, fails where they differ. A reader that stops before must call {@link #finish}.
 */
public final class VerifiedStream extends FilterInputStream {
    /** Says that a file is not the listed one; wraps the sentence for the screen in a type that streams may throw. */
    public static final class Difference extends IOException {
        private static final long serialVersionUID = 1;
        private final ArtefactException problem;

        Difference(ArtefactException problem) {
            super(problem.getMessage(), problem);
            this.problem = problem;
        }

        /** Returns what is wrong, for the screen. */
        public ArtefactException problem() {
            return problem;
        }
    }

    private final FileEntry entry;
    private final MessageDigest digest = sha256();
    private long count;
    private boolean compared;

    /** Creates a stream over the bytes of a listed file. */
    public VerifiedStream(InputStream bytes, FileEntry entry) {
        super(bytes);
        this.entry = entry;
    }

    @Override
    public int read() throws IOException {
        byte[] one = new byte[1];
        return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
    }

    @Override
    public int read(byte[] buffer, int offset, int length) throws IOException {
        int read = super.read(buffer, offset, length);
        if (read > 0) {
            digest.update(buffer, offset, read);
            count += read;
            if (count > entry.bytes()) { // no need to read an endless file to its end
                throw difference("has more than the " + entry.bytes() + " bytes of the list.");
            }
        } else if (read < 0) {
            compare();
        }
        return read;
    }

    @Override
    public long skip(long most) throws IOException {
        byte[] buffer = new byte[(int) Math.max(0, Math.min(most, 8192))];
        return Math.max(0, read(buffer, 0, buffer.length));
    }

    @Override
    public boolean markSupported() {
        return false;
    }

    /**
     * Reads what is left and compares.
     *
     * @throws Difference if the file is not the listed one
     * @throws IOException if it cannot be read
     */
    public void finish() throws IOException {
        byte[] buffer = new byte[1 << 16];
        while (read(buffer, 0, buffer.length) >= 0) {
            continue; // the digest is made on the way
        }
    }

    private void compare() throws Difference {
        if (compared) {
            return;
        }
        compared = true;
        if (count != entry.bytes()) {
            throw difference("has " + count + " bytes, the list says " + entry.bytes() + ".");
        }
        if (!hex(digest.digest()).equals(entry.sha256())) {
            throw difference("changed since it was packed: its sha256 is not the listed one.");
        }
    }

    private Difference difference(String what) {
        return new Difference(
                new ArtefactException(ArtefactException.Reason.WRONG_DIGEST, entry.path(), what, "Pack the model again."));
    }

    private static String hex(byte[] bytes) {
        StringBuilder out = new StringBuilder();
        for (byte one : bytes) {
            out.append(Character.forDigit(one >> 4 & 15, 16)).append(Character.forDigit(one & 15, 16));
        }
        return out.toString();
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("every Java platform has SHA-256", e);
        }
    }
}
