package org.pocketbert.tokenizers;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.pocketbert.tokenizers.regex.Regex;
import org.pocketbert.tokenizers.steps.BertNormalizer;
import org.pocketbert.tokenizers.steps.CharacterNormalizers;
import org.pocketbert.tokenizers.steps.Delimiters;
import org.pocketbert.tokenizers.steps.NormalizationForm;
import org.pocketbert.tokenizers.steps.Normalizer;
import org.pocketbert.tokenizers.steps.PreTokenizer;
import org.pocketbert.tokenizers.steps.Precompiled;
import org.pocketbert.tokenizers.steps.Splitters;

/** Reads the normalizers and pre-tokenizers of tokenizer.json. */
final class StepReader {
    private static final int MOST_STEPS = 64;
    private static final int LONGEST = 4096;
    private static final String NORMALIZERS = "BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, "
            + "Replace, Sequence, Strip, StripAccents";
    private static final String PRE_TOKENIZERS =
            "BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, Metaspace, Punctuation, Sequence, Split, Whitespace, WhitespaceSplit";

    private int steps;

    /** Reads a normalizer; null stands for none. */
    Normalizer normalizer(Object value, String where) throws TokenizerException {
        if (value == null) {
            return piece -> {};
        }
        Fields fields = counted(value, where);
        String type = fields.text("type", null);
        Normalizer out = switch (type) {
            case "Sequence" -> {
                List<Normalizer> all = new ArrayList<>();
                int index = 0;
                for (Object step : fields.list("normalizers")) {
                    all.add(normalizer(required(step, where), where + ".normalizers[" + index++ + "]"));
                }
                yield piece -> all.forEach(step -> step.normalize(piece));
            }
            case "BertNormalizer" -> {
                boolean clean = fields.flag("clean_text", null);
                boolean chinese = fields.flag("handle_chinese_chars", null);
                boolean lower = fields.flag("lowercase", null);
                yield new BertNormalizer(clean, chinese, fields.flag("strip_accents", lower), lower);
            }
            case "NFC" -> new NormalizationForm(false, true);
            case "NFD" -> new NormalizationForm(false, false);
            case "NFKC" -> new NormalizationForm(true, true);
            case "NFKD" -> new NormalizationForm(true, false);
            case "Nmt" -> CharacterNormalizers.nmt();
            case "Lowercase" -> CharacterNormalizers.lowercase();
            case "StripAccents" -> CharacterNormalizers.stripAccents();
            case "ByteLevel" -> CharacterNormalizers.byteLevel();
            case "Strip" -> CharacterNormalizers.strip(fields.flag("strip_left", null), fields.flag("strip_right", null));
            case "Prepend" -> {
                int[] text = bounded(fields, fields.text("prepend", null)).codePoints().toArray();
                yield piece -> piece.prepend(text);
            }
            case "Replace" -> {
                Regex pattern = pattern(fields);
                int[] text = bounded(fields, fields.text("content", null)).codePoints().toArray();
                yield piece -> piece.replace(pattern.matches(piece.codes(), piece.length()), text);
            }
            case "Precompiled" -> precompiled(fields);
            default -> throw fields.refused("the normalizer '" + type + "' is not supported; supported are " + NORMALIZERS + ".");
        };
        fields.done();
        return out;
    }

    /** Reads a pre-tokenizer; null stands for none. */
    PreTokenizer preTokenizer(Object value, String where) throws TokenizerException {
        if (value == null) {
            return pieces -> {};
        }
        Fields fields = counted(value, where);
        String type = fields.text("type", null);
        PreTokenizer out = switch (type) {
            case "Sequence" -> {
                List<PreTokenizer> all = new ArrayList<>();
                int index = 0;
                for (Object step : fields.list("pretokenizers")) {
                    all.add(preTokenizer(required(step, where), where + ".pretokenizers[" + index++ + "]"));
                }
                yield Splitters.sequence(all);
            }
            case "BertPreTokenizer" -> Splitters.bert();
            case "Whitespace" -> Splitters.words();
            case "WhitespaceSplit" -> Splitters.whitespace();
            case "Punctuation" -> Splitters.punctuation(behavior(fields, "Isolated"));
            case "Digits" -> Splitters.digits(fields.flag("individual_digits", null));
            case "CharDelimiterSplit" -> Splitters.delimiter(character(fields, "delimiter"));
            case "Split" -> Splitters.regex(pattern(fields), behavior(fields, null), fields.flag("invert", null));
            case "Metaspace" -> metaspace(fields);
            case "ByteLevel" -> {
                fields.flag("trim_offsets", true); // of the post-processor; it has no meaning here
                yield Splitters.byteLevel(fields.flag("add_prefix_space", null), fields.flag("use_regex", true));
            }
            default -> throw fields.refused("the pre-tokenizer '" + type + "' is not supported; supported are " + PRE_TOKENIZERS + ".");
        };
        fields.done();
        return out;
    }

    private Fields counted(Object value, String where) throws TokenizerException {
        if (++steps > MOST_STEPS * 2) {
            throw new TokenizerException(where + ": more than " + MOST_STEPS * 2 + " normalizers and pre-tokenizers, refused.");
        }
        return Fields.of(value, where);
    }

    private static Object required(Object step, String where) throws TokenizerException {
        if (step == null) {
            throw new TokenizerException(where + ": one of its steps is null.");
        }
        return step;
    }

    private static PreTokenizer metaspace(Fields fields) throws TokenizerException {
        int sign = character(fields, "replacement");
        fields.drop("str_rep");
        boolean prefix = fields.flag("add_prefix_space", true);
        String scheme = fields.text("prepend_scheme", prefix ? "always" : "never");
        if (!List.of("always", "first", "never").contains(scheme) || (!prefix && !scheme.equals("never"))) {
            throw fields.refused("'prepend_scheme' is '" + scheme + "'; allowed are always, first, never, and only never without "
                    + "add_prefix_space.");
        }
        return Splitters.metaspace(
                sign, Splitters.Prepend.valueOf(scheme.toUpperCase(Locale.ROOT)), fields.flag("split", true));
    }

    private static Normalizer precompiled(Fields fields) throws TokenizerException {
        String table = fields.text("precompiled_charsmap", "");
        try {
            return new Precompiled(Base64Text.decode(table));
        } catch (IllegalArgumentException error) {
            throw new TokenizerException(fields.where() + ": 'precompiled_charsmap' " + error.getMessage() + ".", error);
        }
    }

    private static int character(Fields fields, String name) throws TokenizerException {
        String text = fields.text(name, null);
        if (text.codePointCount(0, text.length()) != 1) {
            throw fields.refused("'" + name + "' is " + Fields.shown(text) + ", it must be one character.");
        }
        return text.codePointAt(0);
    }

    private static String bounded(Fields fields, String text) throws TokenizerException {
        if (text.length() > LONGEST) {
            throw fields.refused("a text of " + text.length() + " characters, at most " + LONGEST + " are allowed.");
        }
        return text;
    }

    private static Delimiters behavior(Fields fields, String otherwise) throws TokenizerException {
        String name = fields.text("behavior", otherwise);
        return switch (name) {
            case "Removed" -> Delimiters.REMOVED;
            case "Isolated" -> Delimiters.ISOLATED;
            case "MergedWithPrevious" -> Delimiters.MERGED_WITH_PREVIOUS;
            case "MergedWithNext" -> Delimiters.MERGED_WITH_NEXT;
            case "Contiguous" -> Delimiters.CONTIGUOUS;
            default -> throw fields.refused("'behavior' is '" + name
                    + "'; allowed are Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous.");
        };
    }

    private static Regex pattern(Fields fields) throws TokenizerException {
        Fields pattern = fields.object("pattern");
        boolean literal = pattern.has("String");
        String text = bounded(pattern, pattern.text(literal ? "String" : "Regex", null));
        pattern.done();
        if (text.isEmpty()) {
            throw fields.refused("an empty pattern is not supported.");
        }
        try {
            return literal ? Regex.literal(text) : Regex.of(text);
        } catch (IllegalArgumentException error) {
            throw new TokenizerException(fields.where() + ": " + error.getMessage() + ".", error);
        }
    }
}
