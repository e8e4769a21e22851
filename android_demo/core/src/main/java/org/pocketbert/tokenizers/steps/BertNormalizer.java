package org.pocketbert.tokenizers.steps;

import org.pocketbert.tokenizers.unicode.Unicode;

/** Prepares text as BERT does: no control characters, blanks around Chinese characters, no accents, lower case. */
public final class BertNormalizer implements Normalizer {
    private static final Normalizer NFD = new NormalizationForm(false, false);
    private static final Normalizer LOWERCASE = CharacterNormalizers.lowercase();
    private static final Normalizer CLEAN = CharacterNormalizers.mapping(
            code -> code != 0 && code != 0xFFFD && (code == '\t' || code == '\n' || code == '\r' || !Unicode.BERT_REMOVED.contains(code)),
            code -> Unicode.SPACE.contains(code) ? ' ' : code);
    private static final Normalizer NO_ACCENTS =
            CharacterNormalizers.mapping(code -> !Unicode.NONSPACING.contains(code), code -> code);

    private final boolean clean;
    private final boolean chinese;
    private final boolean accents;
    private final boolean lower;

    /**
     * Makes one.
     *
     * @param clean Whether control characters are removed and all white space becomes blanks.
     * @param chinese Whether Chinese characters become words of their own.
     * @param accents Whether accents are removed.
     * @param lower Whether text becomes lower case.
     */
    public BertNormalizer(boolean clean, boolean chinese, boolean accents, boolean lower) {
        this.clean = clean;
        this.chinese = chinese;
        this.accents = accents;
        this.lower = lower;
    }

    @Override
    public void normalize(Piece piece) {
        if (clean) {
            CLEAN.normalize(piece);
        }
        if (chinese) {
            separateChinese(piece);
        }
        if (accents) {
            NFD.normalize(piece);
            NO_ACCENTS.normalize(piece);
        }
        if (lower) {
            LOWERCASE.normalize(piece);
        }
    }

    private static void separateChinese(Piece piece) {
        Changes made = new Changes(piece.length() + 16);
        boolean any = false;
        for (int i = 0; i < piece.length(); i++) {
            int code = piece.code(i);
            if (isChinese(code)) {
                any = true;
                made.add(' ', 0);
                made.add(code, 1);
                made.add(' ', 1);
            } else {
                made.add(code, 0);
            }
        }
        if (any) {
            piece.transform(made, 0);
        }
    }

    private static boolean isChinese(int code) {
        return code >= 0x3400
                && (code <= 0x4DBF
                        || (code >= 0x4E00 && code <= 0x9FFF)
                        || (code >= 0xF900 && code <= 0xFAFF)
                        || (code >= 0x20000 && code <= 0x2A6DF)
                        || (code >= 0x2A700 && code <= 0x2B81F)
                        || (code >= 0x2B920 && code <= 0x2CEAF)
                        || (code >= 0x2F800 && code <= 0x2FA1F));
    }
}
