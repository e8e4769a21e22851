package org.pocketbert.artefacts;

import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;

/** Passes bytes on and fails where there are more than a bound. */
final class BoundedStream extends FilterInputStream {
    /** Says that there are more bytes than allowed. */
    static final class TooLarge extends IOException {
        private static final long serialVersionUID = 1;

        TooLarge(long most) {
            super("more than " + most + " bytes");
        }
    }

    private final long most;
    private long count;

    BoundedStream(InputStream bytes, long most) {
        super(bytes);
        this.most = most;
    }

    @Override
    public int read() throws IOException {
        byte[] one = new byte[1];
        return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
    }

    @Override
    public int read(byte[] buffer, int offset, int length) throws IOException {
        int read = super.read(buffer, offset, length);
        count += Math.max(0, read);
        if (count > most) {
            throw new TooLarge(most);
        }
        return read;
    }
}
