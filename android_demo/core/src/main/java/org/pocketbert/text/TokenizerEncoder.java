package org.pocketbert.text;

import java.io.IOException;
import java.io.Reader;
import java.util.List;
import org.pocketbert.artefacts.ArtefactException;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.VerifiedStream;
import org.pocketbert.text.TextException.Reason;
import org.pocketbert.tokenizers.Encoding;
import org.pocketbert.tokenizers.Limits;
import org.pocketbert.tokenizers.Tokenizer;

/** Encodes texts with the {@code tokenizer.json} of an artefact folder. Immutable; may be used by several threads. */
public final class TokenizerEncoder implements TextEncoder {
    private static final String FILE = "tokenizer.json";
    private static final List<String> MASKS = List.of("[MASK]", "<mask>", "<special1>");

    private final Tokenizer tokenizer;
    private final boolean keepsEnd;
    private final int maskId;

    private TokenizerEncoder(Tokenizer tokenizer, boolean keepsEnd) {
        this.tokenizer = tokenizer;
        this.keepsEnd = keepsEnd;
        int found = -1;
        for (int i = MASKS.size() - 1; i >= 0; i--) {
            int id = tokenizer.id(MASKS.get(i));
            found = id >= 0 ? id : found;
        }
        maskId = found;
    }

    /**
     * Reads the tokenizer of a folder.
     *
     * @throws ArtefactException if it is missing, not the listed one, or of a kind that this app does not know
     */
    public static TokenizerEncoder read(Artefacts artefacts) throws ArtefactException {
        try (VerifiedStream bytes = artefacts.open(FILE);
                Reader text = Artefacts.text(bytes)) {
            Tokenizer tokenizer = Tokenizer.read(text);
            bytes.finish();
            return new TokenizerEncoder(tokenizer, artefacts.processing().keepsEnd());
        } catch (VerifiedStream.Difference e) {
            throw e.problem();
        } catch (IOException e) {
            throw Artefacts.malformed(FILE, "cannot be used: " + e.getMessage());
        }
    }

    @Override
    public Encoding encode(Input input, int maxLength) throws TextException {
        Limits limits = keepsEnd ? Limits.keepingEnd(maxLength) : Limits.of(maxLength);
        try {
            return input.second() == null
                    ? tokenizer.encode(input.first(), limits)
                    : tokenizer.encode(input.first(), input.second(), limits);
        } catch (IllegalArgumentException e) {
            throw new TextException(Reason.NO_ROOM, e.getMessage());
        }
    }

    @Override
    public List<Encoding> windows(Input input, int maxLength, int stride) throws TextException {
        try {
            return tokenizer.windows(input.first(), input.second(), maxLength, stride);
        } catch (IllegalArgumentException e) {
            throw new TextException(Reason.NO_ROOM, e.getMessage());
        }
    }

    @Override
    public int maskId() {
        return maskId;
    }

    @Override
    public String token(int id) {
        return tokenizer.token(id);
    }

    @Override
    public String decode(int id) {
        return tokenizer.decode(id);
    }
}
