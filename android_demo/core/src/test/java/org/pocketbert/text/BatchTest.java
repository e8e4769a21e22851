package org.pocketbert.text;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.util.List;
import org.junit.Test;
import org.pocketbert.tokenizers.Encoding;
import org.pocketbert.tokenizers.Encodings;

public class BatchTest {
    private static Encoding row(int... ids) {
        int[] zeros = new int[ids.length];
        int[] types = zeros.clone();
        types[ids.length - 1] = 1;
        return Encodings.of(ids, types);
    }

    @Test
    public void rowsArePaddedBehind() {
        Batch batch = Batch.of(List.of(row(5, 6), row(7, 8, 9)), 4, 3, false);
        assertArrayEquals(new long[][] {{5, 6, 3, 3}, {7, 8, 9, 3}}, batch.ids());
        assertArrayEquals(new long[][] {{1, 1, 0, 0}, {1, 1, 1, 0}}, batch.mask());
        assertArrayEquals(new long[][] {{0, 1, 0, 0}, {0, 0, 1, 0}}, batch.typeIds());
        assertArrayEquals(new int[] {0, 0}, batch.starts());
        assertArrayEquals(batch.mask(), batch.inputs().get("attention_mask"));
    }

    @Test
    public void rowsArePaddedBefore() {
        Batch batch = Batch.of(List.of(row(5, 6), row(7, 8, 9)), 4, 3, true);
        assertArrayEquals(new long[][] {{3, 3, 5, 6}, {3, 7, 8, 9}}, batch.ids());
        assertArrayEquals(new long[][] {{0, 0, 1, 1}, {0, 1, 1, 1}}, batch.mask());
        assertArrayEquals(new long[][] {{0, 0, 0, 1}, {0, 0, 0, 1}}, batch.typeIds());
        assertArrayEquals(new int[] {2, 1}, batch.starts());
        assertArrayEquals(new int[] {2, 3}, batch.counts());
    }

    @Test
    public void theSmallestLengthThatFitsIsChosen() throws Exception {
        List<Integer> lengths = List.of(16, 32, 64);
        assertEquals(16, Lengths.fitting(lengths, 1));
        assertEquals(16, Lengths.fitting(lengths, 16));
        assertEquals(32, Lengths.fitting(lengths, 17));
        assertEquals(77, Lengths.fitting(List.of(), 77));
        TextException e = assertThrows(TextException.class, () -> Lengths.fitting(lengths, 65));
        assertEquals(TextException.Reason.LENGTH, e.reason());
        assertTrue(e.getMessage(), e.getMessage().contains("65 tokens; the file takes 16, 32, 64"));
    }

    @Test
    public void theFileAndTheModelLimitTheLength() {
        assertEquals(64, Lengths.longest(List.of(16, 64), 128));
        assertEquals(40, Lengths.longest(List.of(16, 64), 40));
        assertEquals(128, Lengths.longest(List.of(), 128));
    }
}
