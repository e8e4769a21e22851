package org.pocketbert.text;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.pocketbert.tokenizers.Encoding;

/**
 * Holds tokenized inputs stacked and padded to one length, as a model takes them.
 *
 * @param ids token ids, [rows, length]
 * @param mask 1 for tokens and 0 for padding, [rows, length]
 * @param typeIds segments, [rows, length]
 * @param starts place of the first token of each row
 * @param counts number of tokens of each row
 */
public record Batch(long[][] ids, long[][] mask, long[][] typeIds, int[] starts, int[] counts) {
    /**
     * Stacks inputs.
     *
     * @param rows the inputs, at least one
     * @param length length of the batch in tokens, at least that of the longest input
     * @param padId token id that pads
     * @param left whether padding stands before the text
     */
    public static Batch of(List<Encoding> rows, int length, int padId, boolean left) {
        int count = rows.size();
        long[][] ids = new long[count][length];
        long[][] mask = new long[count][length];
        long[][] types = new long[count][length];
        int[] starts = new int[count];
        int[] counts = new int[count];
        for (int row = 0; row < count; row++) {
            Encoding encoding = rows.get(row);
            counts[row] = encoding.length();
            starts[row] = left ? length - counts[row] : 0;
            java.util.Arrays.fill(ids[row], padId);
            for (int i = 0; i < counts[row]; i++) {
                ids[row][starts[row] + i] = encoding.ids()[i];
                mask[row][starts[row] + i] = 1;
                types[row][starts[row] + i] = encoding.typeIds()[i];
            }
        }
        return new Batch(ids, mask, types, starts, counts);
    }

    /** Returns the inputs by the names that graphs have for them, each [rows, length]. */
    public Map<String, long[][]> inputs() {
        Map<String, long[][]> out = new LinkedHashMap<>();
        out.put("input_ids", ids);
        out.put("attention_mask", mask);
        out.put("token_type_ids", typeIds);
        return out;
    }

    /** Returns the length in tokens, padding included. */
    public int length() {
        return ids[0].length;
    }
}
