package org.pocketbert.tokenizers;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.pocketbert.tokenizers.models.Vocabulary;
import org.pocketbert.tokenizers.steps.ByteLetters;

/** Turns ids into tokens and single tokens into text, as the decoder of tokenizer.json says. */
final class TokenNames {
    private static final String META = "\u2581"; // spells a blank in SentencePiece vocabularies

    private final Vocabulary vocabulary;
    private final Map<Integer, AddedTokens.Added> added;
    private final Map<String, Integer> idsOfAdded = new HashMap<>();
    private final String kind;
    private final String suffix;

    /**
     * Makes the names of a tokenizer.
     *
     * @param decoder The field {@code decoder}, as {@link Fields#value} reads it; a kind that is not known leaves tokens as they are.
     */
    TokenNames(Vocabulary vocabulary, Map<Integer, AddedTokens.Added> added, Object decoder) {
        this.vocabulary = vocabulary;
        this.added = Map.copyOf(added);
        added.forEach((id, token) -> idsOfAdded.put(token.content(), id));
        Map<?, ?> fields = decoder instanceof Map<?, ?> map ? map : Map.of();
        kind = kind(fields);
        suffix = fields.get("suffix") instanceof String text ? text : "";
    }

    /** Returns the decoder's type; of a sequence, that of the first part that spells blanks. */
    private static String kind(Map<?, ?> decoder) {
        if (decoder.get("decoders") instanceof List<?> parts) {
            for (Object part : parts) {
                String found = part instanceof Map<?, ?> map ? kind(map) : "";
                if (found.equals("ByteLevel") || found.equals("Metaspace")) {
                    return found;
                }
            }
        }
        return String.valueOf(decoder.get("type"));
    }

    int id(String token) {
        Integer id = idsOfAdded.get(token);
        return id == null ? vocabulary.id(token) : id;
    }

    String token(int id) {
        AddedTokens.Added token = added.get(id);
        return token == null ? vocabulary.piece(id) : token.content();
    }

    String decode(int id) {
        AddedTokens.Added special = added.get(id);
        if (special != null) {
            return special.special() ? "" : special.content();
        }
        String token = vocabulary.piece(id);
        return switch (kind) {
            case "ByteLevel" -> ByteLetters.read(token, StandardCharsets.UTF_8);
            case "Metaspace" -> token.startsWith(META) ? token.substring(1).replace(META, " ") : token.replace(META, " ");
            case "BPEDecoder" -> suffix.isEmpty() || !token.endsWith(suffix)
                    ? token
                    : token.substring(0, token.length() - suffix.length());
            default -> token;
        };
    }
}
