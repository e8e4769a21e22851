package org.pocketbert.tokenizers;

import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import java.io.IOException;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import org.pocketbert.tokenizers.models.Bpe;
import org.pocketbert.tokenizers.models.Merges;
import org.pocketbert.tokenizers.models.Model;
import org.pocketbert.tokenizers.models.Scores;
import org.pocketbert.tokenizers.models.StringPool;
import org.pocketbert.tokenizers.models.Unigram;
import org.pocketbert.tokenizers.models.Vocabulary;
import org.pocketbert.tokenizers.models.WordLevel;
import org.pocketbert.tokenizers.models.WordPiece;

/** Reads the model of tokenizer.json piece by piece, so that a large vocabulary is never there twice. */
final class ModelReader {
    /** Most pieces, and most merges: four times the largest vocabulary that is published. */
    private static final int MOST = 1 << 20;
    private static final int MOST_ID = 1 << 24;
    private static final int LONGEST_WORD = 1 << 20;
    private static final String SUPPORTED = "BPE, Unigram, WordLevel, WordPiece";

    private final JsonReader json;
    private final String where;
    private StringPool pieces;
    private int[] ids = new int[1024];
    private double[] scores;
    private StringPool merges;

    private ModelReader(JsonReader json, String where) {
        this.json = json;
        this.where = where;
    }

    static Model read(JsonReader json, String where) throws IOException {
        try {
            return new ModelReader(json, where).model();
        } catch (IllegalArgumentException error) {
            throw new TokenizerException(where + ": " + error.getMessage() + ".", error);
        }
    }

    private Model model() throws IOException {
        Map<String, Object> rest = new LinkedHashMap<>();
        json.beginObject();
        while (json.hasNext()) {
            String name = json.nextName();
            if (rest.containsKey(name) || (name.equals("vocab") && pieces != null) || (name.equals("merges") && merges != null)) {
                throw new TokenizerException(where + ": the key '" + name + "' is there twice.");
            }
            switch (name) {
                case "vocab" -> readVocabulary();
                case "merges" -> readMerges();
                default -> rest.put(name, Fields.value(json, where + "." + name));
            }
        }
        json.endObject();
        if (pieces == null || pieces.size() == 0) {
            throw new TokenizerException(where + ": its vocabulary is empty.");
        }
        Fields fields = new Fields(where, rest);
        String type = fields.text("type", guessed(rest));
        if (type.equals("Unigram") != (scores != null) || type.equals("BPE") != (merges != null)) {
            throw fields.refused("a vocabulary or merges that are not those of a model of type '" + type + "'; supported are " + SUPPORTED + ".");
        }
        ids = Arrays.copyOf(ids, pieces.size());
        Vocabulary vocabulary = new Vocabulary(pieces, ids, scores != null);
        Model out = switch (type) {
            case "WordPiece" -> new WordPiece(
                    vocabulary, fields.text("unk_token", null), fields.text("continuing_subword_prefix", "##"),
                    fields.number("max_input_chars_per_word", 100, LONGEST_WORD));
            case "WordLevel" -> new WordLevel(vocabulary, fields.text("unk_token", null));
            case "Unigram" -> unigram(fields, vocabulary);
            case "BPE" -> bpe(fields, vocabulary);
            default -> throw fields.refused("a model of type '" + type + "' is not supported; supported are " + SUPPORTED + ".");
        };
        fields.done();
        return out;
    }

    /** Files of before 2021 name no type. */
    private String guessed(Map<String, Object> rest) {
        return merges != null ? "BPE" : scores != null ? "Unigram" : rest.containsKey("max_input_chars_per_word") ? "WordPiece" : null;
    }

    private void readVocabulary() throws IOException {
        pieces = new StringPool();
        boolean scored = json.peek() == JsonToken.BEGIN_ARRAY;
        if (scored) {
            scores = new double[1024];
            json.beginArray();
        } else {
            json.beginObject();
        }
        while (json.hasNext()) {
            int index = pieces.size();
            if (index >= MOST) {
                throw new TokenizerException(where + ": a vocabulary of more than " + MOST + " pieces, refused.");
            }
            if (index == ids.length) {
                ids = Arrays.copyOf(ids, 2 * index);
                scores = scored ? Arrays.copyOf(scores, 2 * index) : null;
            }
            if (scored) {
                json.beginArray();
                pieces.add(json.nextString());
                ids[index] = index;
                scores[index] = Scores.parse(json.peek() == JsonToken.NUMBER ? json.nextString() : String.valueOf(json.peek()));
                json.endArray();
            } else {
                pieces.add(json.nextName());
                String id = json.peek() == JsonToken.NUMBER ? json.nextString() : String.valueOf(json.peek());
                if (!id.matches("[0-9]{1,8}") || Integer.parseInt(id) > MOST_ID) {
                    throw new TokenizerException(
                            where + ": piece '" + pieces.get(index) + "' has the id " + id + ", allowed are 0 to " + MOST_ID + ".");
                }
                ids[index] = Integer.parseInt(id);
            }
        }
        if (scored) {
            json.endArray();
            scores = Arrays.copyOf(scores, pieces.size());
        } else {
            json.endObject();
        }
    }

    private void readMerges() throws IOException {
        merges = new StringPool();
        json.beginArray();
        while (json.hasNext()) {
            if (merges.size() >= 2 * MOST) {
                throw new TokenizerException(where + ": more than " + MOST + " merges, refused.");
            }
            if (json.peek() == JsonToken.BEGIN_ARRAY) {
                json.beginArray();
                merges.add(json.nextString());
                merges.add(json.nextString());
                json.endArray();
                continue;
            }
            String line = json.nextString();
            if (line.startsWith("#version")) {
                continue;
            }
            int blank = line.indexOf(' ');
            if (blank < 0 || line.indexOf(' ', blank + 1) >= 0) {
                throw new TokenizerException(where + ": the merge " + Fields.shown(line) + " must be two pieces with one blank between.");
            }
            merges.add(line.substring(0, blank));
            merges.add(line.substring(blank + 1));
        }
        json.endArray();
    }

    private Model unigram(Fields fields, Vocabulary vocabulary) throws TokenizerException {
        if (!fields.has("unk_id")) {
            throw fields.refused("'unk_id' is missing: a model of type Unigram must name the piece of unknown characters.");
        }
        int unknown = fields.number("unk_id", null, vocabulary.size() - 1);
        return new Unigram(vocabulary, scores, unknown, fields.flag("byte_fallback", false));
    }

    private Model bpe(Fields fields, Vocabulary vocabulary) throws TokenizerException {
        if (fields.has("dropout") && !Fields.shown(fields.rest().get("dropout")).matches("0(\\.0*)?")) {
            throw fields.refused("'dropout' is not supported: it gives other tokens each time. Save the tokenizer without it.");
        }
        fields.drop("dropout");
        String unknown = fields.has("unk_token") ? fields.text("unk_token", null) : null;
        fields.drop("unk_token");
        Bpe.Options options = new Bpe.Options(
                unknown, fields.text("continuing_subword_prefix", ""), fields.text("end_of_word_suffix", ""),
                fields.flag("fuse_unk", false), fields.flag("byte_fallback", false), fields.flag("ignore_merges", false));
        if (options.byteFallback() && !(options.prefix().isEmpty() && options.suffix().isEmpty())) {
            throw fields.refused("'byte_fallback' with a prefix or suffix of pieces is not supported.");
        }
        Merges made = new Merges(merges.size() / 2);
        for (int i = 0; i < merges.size(); i += 2) {
            String left = merges.get(i);
            String right = merges.get(i + 1);
            String joined = right.startsWith(options.prefix()) ? left + right.substring(options.prefix().length()) : null;
            int result = joined == null ? -1 : vocabulary.id(joined);
            if (vocabulary.id(left) < 0 || vocabulary.id(right) < 0 || result < 0) {
                throw fields.refused("the merge of '" + left + "' and '" + right + "' names a piece that the vocabulary does not have.");
            }
            made.add(vocabulary.id(left), vocabulary.id(right), result);
        }
        return new Bpe(vocabulary, made, options);
    }
}
