package org.pocketbert.selftest;

import java.util.Arrays;
import java.util.List;
import org.pocketbert.artefacts.ArtefactException;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.Fields;
import org.pocketbert.text.Input;
import org.pocketbert.tokenizers.Encoding;

/**
 * Holds a text and its tokens, to check a tokenizer.
 *
 * @param number its line in {@code golden_tokens.jsonl}, from 1
 * @param input the text, or two, with the prompt where the folder has one
 * @param ids token ids
 * @param typeIds segments; empty where they are not recorded
 */
public record TokenRow(int number, Input input, int[] ids, int[] typeIds) {
    /** Name of the file. */
    public static final String FILE_NAME = "golden_tokens.jsonl";

    /**
     * Reads all rows.
     *
     * @throws ArtefactException if the file is missing, not the listed one, or a row is wrong
     */
    public static List<TokenRow> read(Artefacts artefacts) throws ArtefactException {
        int[] number = {0};
        return JsonLines.read(artefacts, FILE_NAME, fields -> of(++number[0], fields));
    }

    private static TokenRow of(int number, Fields fields) {
        int[] ids = fields.wholes("ids", 0, Integer.MAX_VALUE);
        return new TokenRow(number, GoldenRow.input(fields), ids, fields.wholes("type_ids", 0, Integer.MAX_VALUE));
    }

    /** Returns whether a tokenized text has the recorded tokens. */
    public boolean equals(Encoding encoding) {
        return Arrays.equals(ids, encoding.ids()) && (typeIds.length == 0 || Arrays.equals(typeIds, encoding.typeIds()));
    }
}
