package org.pocketbert.tokenizers;

import java.io.IOException;
import java.io.Reader;
import java.util.ArrayList;
import java.util.List;
import org.pocketbert.tokenizers.models.Model;
import org.pocketbert.tokenizers.models.Tokens;
import org.pocketbert.tokenizers.steps.ByteLetters;
import org.pocketbert.tokenizers.steps.Normalizer;
import org.pocketbert.tokenizers.steps.Piece;
import org.pocketbert.tokenizers.steps.Pieces;
import org.pocketbert.tokenizers.steps.PreTokenizer;
import org.pocketbert.tokenizers.unicode.Unicode;

/**
 * Turns text into token ids as the {@code tokenizers} library does with the same tokenizer.json: equal ids, segment ids and places.
 *
 * <p>Padding and truncation in the file are ignored; the caller says how long an input may be. Halves of surrogate pairs, which
 * no text has, count as U+FFFD. Immutable; may be used by several threads.
 */
public final class Tokenizer {
    private final AddedTokens plain;
    private final AddedTokens normalized;
    private final Normalizer normalizer;
    private final PreTokenizer preTokenizer;
    private final Model model;
    private final Frame frame;
    private final TokenNames names;

    Tokenizer(
            AddedTokens plain,
            AddedTokens normalized,
            Normalizer normalizer,
            PreTokenizer preTokenizer,
            Model model,
            Frame frame,
            TokenNames names) {
        this.plain = plain;
        this.normalized = normalized;
        this.normalizer = normalizer;
        this.preTokenizer = preTokenizer;
        this.model = model;
        this.frame = frame;
        this.names = names;
    }

    /**
     * Reads a tokenizer.json as a stream.
     *
     * @param tokenizerJson The file, decoded from UTF-8; stays open.
     * @throws TokenizerException If it is no tokenizer, or has what is not supported, which the message names.
     * @throws IOException If it cannot be read.
     */
    public static Tokenizer read(Reader tokenizerJson) throws IOException {
        return TokenizerReader.read(tokenizerJson);
    }

    /** Returns the number of special tokens around a text, or around a pair of texts. */
    public int specialTokens(boolean pair) {
        return frame.specialTokens(pair);
    }

    /** Returns the id of a token of the vocabulary, or -1 where it has none of this name. */
    public int id(String token) {
        return names.id(token);
    }

    /** Returns a token as the vocabulary spells it. */
    public String token(int id) {
        return names.token(id);
    }

    /** Returns a single token as it reads; empty for a special token. */
    public String decode(int id) {
        return names.decode(id);
    }

    /** Tokenizes a text of any length. */
    public Encoding encode(String text) {
        return new Encoding(frame.around(row(text, 0), null), false);
    }

    /** Tokenizes a pair of texts of any length. */
    public Encoding encode(String first, String second) {
        return new Encoding(frame.around(row(first, 0), row(second, 1)), false);
    }

    /**
     * Tokenizes a text and cuts its end off where it has too many tokens, or its beginning where the limits keep the end.
     *
     * @throws IllegalArgumentException If the limit leaves no room for text.
     */
    public Encoding encode(String text, Limits limits) {
        Row all = row(text, 0);
        int room = room(limits, false);
        Row kept = cut(all, room, limits);
        return new Encoding(frame.around(kept, null), kept.size() < all.size());
    }

    /**
     * Tokenizes a pair of texts and cuts off the ends, or the beginnings where the limits keep the ends: of the longer one first,
     * of both where both are too long.
     *
     * @throws IllegalArgumentException If the limit leaves no room for text.
     */
    public Encoding encode(String first, String second, Limits limits) {
        Row one = row(first, 0);
        Row other = row(second, 1);
        int room = room(limits, true);
        if (one.size() + other.size() <= room) {
            return new Encoding(frame.around(one, other), false);
        }
        boolean swapped = one.size() > other.size();
        int shorter = Math.min(one.size(), other.size());
        int longer = shorter > room ? shorter : Math.max(shorter, room - shorter);
        if (shorter + longer > room) {
            shorter = room / 2;
            longer = shorter + room % 2;
        }
        Row keptOne = cut(one, swapped ? longer : shorter, limits);
        Row keptOther = cut(other, swapped ? shorter : longer, limits);
        boolean cut = keptOne.size() < one.size() || keptOther.size() < other.size();
        return new Encoding(frame.around(keptOne, keptOther), cut);
    }

    /** Tokenizes a question and a context in windows; see {@link #windows(String, String, Limits)}. */
    public List<Encoding> windows(String question, String context, int maxLength, int stride) {
        return windows(question, context, new Limits(maxLength, stride));
    }

    /**
     * Tokenizes a question with each of the overlapping windows that a long context is read in.
     *
     * @param limits Most tokens of a window, and how many two neighbours share (fewer where the room is smaller than that).
     * @return At least one window, in the order of the context.
     * @throws IllegalArgumentException If the question leaves no room for the context.
     */
    public List<Encoding> windows(String question, String context, Limits limits) {
        Row first = row(question, 0);
        Row second = row(context, 1);
        int room = limits.maxLength() - frame.specialTokens(true) - first.size();
        if (room < 1) {
            throw new IllegalArgumentException("The question has " + (limits.maxLength() - room)
                    + " tokens with the special ones, the model takes " + limits.maxLength() + ": no room for the context. Shorten it.");
        }
        List<Encoding> out = new ArrayList<>();
        int step = room - Math.min(limits.stride(), room - 1);
        for (int start = 0; ; start += step) {
            int end = Math.min(start + room, second.size());
            Row window = frame.around(first.slice(0, first.size()), second.slice(start, end), start > 0);
            out.add(new Encoding(window, second.size() > room));
            if (end == second.size()) {
                return out;
            }
        }
    }

    /** Returns at most so many tokens of a text: its first ones, or its last ones where the limits keep the end. */
    private static Row cut(Row all, int most, Limits limits) {
        int left = Math.max(0, all.size() - most);
        return limits.keepsEnd() ? all.slice(left, all.size()) : all.slice(0, all.size() - left);
    }

    private int room(Limits limits, boolean pair) {
        int special = frame.specialTokens(pair);
        if (limits.maxLength() <= special) {
            throw new IllegalArgumentException(
                    "maxLength " + limits.maxLength() + " leaves no room for text next to " + special + " special tokens.");
        }
        return limits.maxLength() - special;
    }

    private Row row(String text, int part) {
        Pieces pieces = new Pieces(Piece.of(text));
        plain.extract(pieces);
        for (Pieces.Part piece : pieces.parts()) {
            if (piece.token() == null) {
                normalizer.normalize(piece.text());
            }
        }
        normalized.extract(pieces);
        pieces.dropEmpty();
        preTokenizer.split(pieces);
        Row out = new Row(2 * pieces.parts().size());
        Tokens tokens = new Tokens();
        Utf8 bytes = new Utf8();
        int word = 0;
        for (Pieces.Part piece : pieces.parts()) {
            Pieces.Found found = piece.token();
            if (found != null) {
                out.add(found.id(), part, found.start(), found.end(), part, word, found.leading(), found.trailing());
            } else {
                Piece content = piece.text();
                bytes.encode(content.codes(), content.length());
                tokens.clear();
                model.tokenize(bytes.bytes(), bytes.length(), tokens);
                for (int i = 0; i < tokens.size(); i++) {
                    int start = content.start(bytes.index(tokens.start(i)));
                    int end = content.end(bytes.index(tokens.end(i) - 1));
                    add(out, tokens.id(i), part, start, end, word);
                }
            }
            word++;
        }
        return out;
    }

    /** Adds a token of the vocabulary. Where the frame cuts white space from places, that of the piece is counted. */
    private void add(Row out, int id, int part, int start, int end, int word) {
        int leading = 0;
        int trailing = 0;
        if (frame.trims()) {
            String piece = model.vocabulary().piece(id);
            while (leading < piece.length() && isBlank(piece.charAt(leading))) {
                leading++;
            }
            while (trailing < piece.length() && isBlank(piece.charAt(piece.length() - 1 - trailing))) {
                trailing++;
            }
        }
        out.add(id, part, start, end, part, word, leading, trailing);
    }

    /** Whether a character is white space, or the letter that byte-level BPE writes for a blank; all are in the first plane. */
    static boolean isBlank(int code) {
        return code == ByteLetters.BLANK || Unicode.SPACE.contains(code);
    }
}
