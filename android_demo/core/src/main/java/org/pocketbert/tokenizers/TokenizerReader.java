package org.pocketbert.tokenizers;

import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import com.google.gson.stream.MalformedJsonException;
import java.io.EOFException;
import java.io.IOException;
import java.io.Reader;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.pocketbert.tokenizers.models.Model;
import org.pocketbert.tokenizers.models.Unigram;
import org.pocketbert.tokenizers.steps.Normalizer;
import org.pocketbert.tokenizers.steps.Piece;
import org.pocketbert.tokenizers.steps.PreTokenizer;

/** Reads tokenizer.json as a stream. */
final class TokenizerReader {
    private static final String FILE = "tokenizer.json";

    private final JsonReader json;
    private final StepReader steps = new StepReader();
    private final Set<String> seen = new HashSet<>();
    private Object normalizer;
    private Object preTokenizer;
    private Object postProcessor;
    private Object added;
    private Object decoder;
    private Model model;

    private TokenizerReader(Reader reader) {
        json = new JsonReader(reader);
    }

    static Tokenizer read(Reader reader) throws IOException {
        try {
            return new TokenizerReader(reader).tokenizer();
        } catch (MalformedJsonException | EOFException | IllegalStateException | NumberFormatException error) {
            throw new TokenizerException(FILE + ": not a tokenizer: " + firstLine(error), error);
        }
    }

    private static String firstLine(Exception error) {
        String message = String.valueOf(error.getMessage());
        int end = message.indexOf('\n');
        return end < 0 ? message : message.substring(0, end);
    }

    private Tokenizer tokenizer() throws IOException {
        json.beginObject();
        while (json.hasNext()) {
            field(json.nextName());
        }
        json.endObject();
        if (json.peek() != JsonToken.END_DOCUMENT) {
            throw new TokenizerException(FILE + ": there is more behind its end.");
        }
        if (model == null) {
            throw new TokenizerException(FILE + ": not a tokenizer: it has no model.");
        }
        Normalizer ownNormalizer = steps.normalizer(normalizer, FILE + ": normalizer");
        PreTokenizer ownPreTokenizer = steps.preTokenizer(preTokenizer, FILE + ": pre_tokenizer");
        Frame frame = FrameReader.read(postProcessor, FILE + ": post_processor");
        if (frame.trims() && model instanceof Unigram) {
            throw new TokenizerException(FILE + ": post_processor: 'trim_offsets' with a model of type Unigram is not supported.");
        }
        Map<Integer, AddedTokens.Added> tokens = addedTokens();
        Map<Integer, String> plain = new HashMap<>();
        Map<Integer, String> normalized = new HashMap<>();
        tokens.forEach((id, token) -> {
            if (token.normalized()) {
                normalized.put(id, normalize(ownNormalizer, token.content()));
            } else {
                plain.put(id, token.content());
            }
        });
        try {
            return new Tokenizer(
                    new AddedTokens(tokens, plain),
                    new AddedTokens(tokens, normalized),
                    ownNormalizer,
                    ownPreTokenizer,
                    model,
                    frame,
                    new TokenNames(model.vocabulary(), tokens, decoder));
        } catch (IllegalArgumentException error) {
            throw new TokenizerException(FILE + ": added_tokens: " + error.getMessage() + ".", error);
        }
    }

    private void field(String name) throws IOException {
        if (!seen.add(name)) {
            throw new TokenizerException(FILE + ": the key '" + name + "' is there twice.");
        }
        switch (name) {
            case "normalizer" -> normalizer = Fields.value(json, FILE + ": normalizer");
            case "pre_tokenizer" -> preTokenizer = Fields.value(json, FILE + ": pre_tokenizer");
            case "post_processor" -> postProcessor = Fields.value(json, FILE + ": post_processor");
            case "added_tokens" -> added = Fields.value(json, FILE + ": added_tokens");
            case "model" -> model = ModelReader.read(json, FILE + ": model");
            case "decoder" -> decoder = Fields.value(json, FILE + ": decoder");
            // the app cuts and pads by itself
            case "truncation", "padding" -> json.skipValue();
            case "version" -> {
                String version = json.nextString();
                if (!version.equals("1.0")) {
                    throw new TokenizerException(FILE + ": version '" + version + "' is not supported; supported is 1.0.");
                }
            }
            default -> throw new TokenizerException(
                    FILE + ": '" + name + "' is not known here; nothing of a tokenizer is left out silently.");
        }
    }

    /** Reads the added tokens. Their ids are those that the library gives: the vocabulary's, else the next ones behind it. */
    private Map<Integer, AddedTokens.Added> addedTokens() throws TokenizerException {
        Map<Integer, AddedTokens.Added> out = new LinkedHashMap<>();
        Map<String, Integer> known = new HashMap<>();
        int next = model.vocabulary().size();
        if (added == null) {
            return out;
        }
        if (!(added instanceof List)) {
            throw new TokenizerException(FILE + ": added_tokens: " + Fields.shown(added) + " is no list.");
        }
        int index = 0;
        for (Object value : (List<?>) added) {
            Fields fields = Fields.of(value, FILE + ": added_tokens[" + index++ + "]");
            fields.number("id", null, Integer.MAX_VALUE);
            AddedTokens.Added token = new AddedTokens.Added(
                    fields.text("content", null), fields.flag("single_word", null), fields.flag("lstrip", null),
                    fields.flag("rstrip", null), fields.flag("normalized", null), fields.flag("special", null));
            fields.done();
            if (token.content().isEmpty()) {
                continue;
            }
            Integer id = known.get(token.content());
            if (id == null) {
                int own = model.vocabulary().id(token.content());
                id = own >= 0 ? own : next++;
                known.put(token.content(), id);
            }
            out.put(id, token);
        }
        return out;
    }

    private static String normalize(Normalizer normalizer, String text) {
        Piece piece = Piece.of(text);
        normalizer.normalize(piece);
        return new String(piece.codes(), 0, piece.length());
    }
}
