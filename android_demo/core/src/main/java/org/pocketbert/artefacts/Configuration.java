package org.pocketbert.artefacts;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Holds what an app needs of {@code config.json}, the label file of the folder.
 *
 * @param padId token id that pads
 * @param vocabularySize rows of the table of embeddings; -1 where the file does not tell
 * @param labels names of the outputs in order of their ids; empty where it names none
 */
public record Configuration(int padId, int vocabularySize, List<String> labels) {
    /** Name of the file. */
    public static final String FILE_NAME = "config.json";
    /** Largest file that is read, in bytes. */
    public static final long MAX_BYTES = 16L << 20;

    private static final String HEADS = "pocketbert_heads";

    /**
     * Reads {@code config.json} and compares its label names and heads with those of the list.
     *
     * @throws ArtefactException if it is missing, not the listed file, no configuration, or names other labels or heads
     */
    public static Configuration read(Artefacts artefacts) throws ArtefactException {
        JsonElement content = artefacts.json(FILE_NAME, MAX_BYTES);
        Configuration found;
        try {
            found = of(Fields.of("", content));
        } catch (Fields.WrongField e) {
            throw Artefacts.malformed(FILE_NAME, e.getMessage());
        }
        List<String> listed = artefacts.labels();
        if (artefacts.task().namesLabels() && !found.labels().isEmpty() && !found.labels().equals(listed)) {
            throw Artefacts.malformed(FILE_NAME, "its labels differ from those of the list: " + difference(found.labels(), listed));
        }
        checkHeads(artefacts, Fields.of("", content));
        return found;
    }

    /** Refuses a model with other heads than the list has, or heads where the list has one. */
    private static void checkHeads(Artefacts artefacts, Fields config) throws ArtefactException {
        Map<String, String> listed = new HashMap<>();
        for (NamedHead head : artefacts.heads()) {
            listed.put(head.name(), head.task().hubName());
        }
        listed.remove("");
        Map<String, String> found = new HashMap<>();
        try {
            Fields heads = config.has(HEADS) ? config.fields(HEADS) : Fields.of("", new JsonObject());
            for (String name : heads.keys()) {
                found.put(name, heads.text(name));
            }
        } catch (Fields.WrongField e) {
            throw Artefacts.malformed(FILE_NAME, e.getMessage());
        }
        if (!found.equals(listed)) {
            throw Artefacts.malformed(FILE_NAME, HEADS + " is " + found + ", the list has " + listed + ".");
        }
    }

    private static Configuration of(Fields fields) {
        // configurations of before 2020 say pad_index
        String pad = fields.has("pad_token_id") || !fields.has("pad_index") ? "pad_token_id" : "pad_index";
        int padId = fields.has(pad) ? (int) fields.whole(pad, 0, Integer.MAX_VALUE) : 0;
        int rows = fields.has("vocab_size") ? (int) fields.whole("vocab_size", 1, Integer.MAX_VALUE) : -1;
        List<String> names = new ArrayList<>();
        if (fields.has("id2label")) {
            Fields labels = fields.fields("id2label");
            for (int id = 0; id < labels.keys().size(); id++) {
                names.add(labels.text(Integer.toString(id)));
            }
        }
        return new Configuration(padId, rows, List.copyOf(names));
    }

    private static String difference(List<String> names, List<String> listed) {
        for (int i = 0; i < Math.min(names.size(), listed.size()); i++) {
            if (!names.get(i).equals(listed.get(i))) {
                return "output " + i + " is '" + names.get(i) + "' instead of '" + listed.get(i) + "'.";
            }
        }
        return names.size() + " instead of " + listed.size() + ".";
    }
}
