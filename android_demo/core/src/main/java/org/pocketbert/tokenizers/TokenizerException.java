package org.pocketbert.tokenizers;

import java.io.IOException;

/** Says why a tokenizer.json is not opened: the place, the value, and what is allowed there. */
public final class TokenizerException extends IOException {
    private static final long serialVersionUID = 1L;

    /** Makes one with its message. */
    public TokenizerException(String message) {
        super(message);
    }

    /** Makes one with its message and what it comes from. */
    public TokenizerException(String message, Throwable cause) {
        super(message, cause);
    }
}
