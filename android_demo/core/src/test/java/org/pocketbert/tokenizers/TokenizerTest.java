package org.pocketbert.tokenizers;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.Test;

/** Tests limits, windows, places and odd texts on a tokenizer of nine pieces; equality with the library is tested elsewhere. */
public final class TokenizerTest {
    private static int[] ints(int... values) {
        return values;
    }

    /** A text gets its special tokens, segment ids and places in code points. */
    @Test
    public void aTextHasItsPlaces() throws IOException {
        Encoding made = TinyFiles.read(TinyFiles.bert()).encode("\uD83D\uDE00 Words, \u00C1c");
        assertArrayEquals(ints(1, 0, 7, 8, 0, 3, 5, 2), made.ids());
        assertArrayEquals(ints(0, 0, 2, 6, 7, 9, 10, 0), made.starts());
        assertArrayEquals(ints(0, 1, 6, 7, 8, 10, 11, 0), made.ends());
        assertArrayEquals(ints(-1, 0, 0, 0, 0, 0, 0, -1), made.parts());
        assertArrayEquals(ints(-1, 0, 1, 1, 2, 3, 3, -1), made.words());
        assertEquals(1, made.tail());
    }

    /** Places become indexes of a string in which characters beyond the first plane take two. */
    @Test
    public void placesBecomeIndexesOfAString() {
        assertArrayEquals(ints(0, 2, 3, 4, 4), Encoding.utf16("\uD83D\uDE00ab", ints(0, 1, 2, 3, 9)));
        assertArrayEquals(ints(0), Encoding.utf16("", ints(5)));
    }

    /** A pair has both texts, with the segment ids of the frame. */
    @Test
    public void aPairHasBothTexts() throws IOException {
        Encoding made = TinyFiles.read(TinyFiles.bert()).encode("a", "b d");
        assertArrayEquals(ints(1, 3, 2, 4, 6, 2), made.ids());
        assertArrayEquals(ints(0, 0, 0, 1, 1, 1), made.typeIds());
        assertArrayEquals(ints(-1, 0, -1, 1, 1, -1), made.parts());
    }

    /** A long text loses its end, never its special tokens; one that fits loses nothing. */
    @Test
    public void aLongTextIsCut() throws IOException {
        Tokenizer tokenizer = TinyFiles.read(TinyFiles.bert());
        Encoding cut = tokenizer.encode("a b d a b d", Limits.of(5));
        assertArrayEquals(ints(1, 3, 4, 6, 2), cut.ids());
        assertTrue(cut.truncated());
        assertFalse(tokenizer.encode("a b d", Limits.of(5)).truncated());
    }

    /** Of a pair the longer text is cut first; two long ones share what room there is. */
    @Test
    public void ofAPairTheLongerTextIsCutFirst() throws IOException {
        Tokenizer tokenizer = TinyFiles.read(TinyFiles.bert());
        assertArrayEquals(ints(1, 3, 2, 4, 4, 2), tokenizer.encode("a", "b b b b b", Limits.of(6)).ids());
        assertArrayEquals(ints(1, 3, 3, 3, 2, 4, 4, 2), tokenizer.encode("a a a a a a a", "b b b b b b", Limits.of(8)).ids());
        assertArrayEquals(ints(1, 3, 3, 2, 4, 4, 4, 2), tokenizer.encode("a a a a a a", "b b b b b b", Limits.of(8)).ids());
    }

    /** Limits that keep the end cut off beginnings, in the same shares; the special tokens stay. */
    @Test
    public void theBeginningIsCutWhereTheEndIsKept() throws IOException {
        Tokenizer tokenizer = TinyFiles.read(TinyFiles.bert());
        Encoding cut = tokenizer.encode("a a a b d", Limits.keepingEnd(4));
        assertArrayEquals(ints(1, 4, 6, 2), cut.ids());
        assertArrayEquals(ints(0, 6, 8, 0), cut.starts());
        assertTrue(cut.truncated());
        assertFalse(tokenizer.encode("a b d", Limits.keepingEnd(5)).truncated());
        assertArrayEquals(ints(1, 3, 2, 4, 6, 2), tokenizer.encode("a", "b b b b d", Limits.keepingEnd(6)).ids());
        assertArrayEquals(
                ints(1, 3, 3, 4, 2, 4, 6, 2), tokenizer.encode("a a a a a a b", "b b b b b d", Limits.keepingEnd(8)).ids());
        List<Encoding> windows = tokenizer.windows("a", "b b d", new Limits(6, 0, true));
        assertArrayEquals(ints(1, 3, 2, 4, 4, 2), windows.get(0).ids()); // windows have all of the text
    }

    /** A limit that leaves no room for text is refused with both numbers. */
    @Test
    public void aLimitWithoutRoomIsRefused() throws IOException {
        Tokenizer tokenizer = TinyFiles.read(TinyFiles.bert());
        Exception error = assertThrows(IllegalArgumentException.class, () -> tokenizer.encode("a", Limits.of(2)));
        assertTrue(error.getMessage(), error.getMessage().contains("maxLength 2 leaves no room for text next to 2 special tokens"));
        assertThrows(IllegalArgumentException.class, () -> Limits.of(0));
        assertThrows(IllegalArgumentException.class, () -> new Limits(4, -1));
    }

    /** Windows share the stride, cover the context, and all have the question. */
    @Test
    public void windowsCoverTheContext() throws IOException {
        List<Encoding> windows = TinyFiles.read(TinyFiles.bert()).windows("a", "b d b d b d b", 7, 1);
        assertEquals(3, windows.size());
        assertArrayEquals(ints(1, 3, 2, 4, 6, 4, 2), windows.get(0).ids());
        assertArrayEquals(ints(1, 3, 2, 4, 6, 4, 2), windows.get(1).ids());
        assertArrayEquals(ints(0, 0, 0, 8, 10, 12, 0), windows.get(2).starts());
        assertTrue(windows.get(0).truncated());
    }

    /** A question that leaves no room for the context is refused. */
    @Test
    public void aQuestionThatIsTooLongIsRefused() throws IOException {
        Tokenizer tokenizer = TinyFiles.read(TinyFiles.bert());
        Exception error = assertThrows(IllegalArgumentException.class, () -> tokenizer.windows("a b d a", "b", 7, 0));
        assertTrue(error.getMessage(), error.getMessage().contains("The question has 7 tokens with the special ones, the model takes 7"));
    }

    /** Empty texts, NUL, halves of surrogate pairs and 100,000 characters of one word are read. */
    @Test
    public void oddTextsAreRead() throws IOException {
        Tokenizer tokenizer = TinyFiles.read(TinyFiles.bert());
        assertArrayEquals(ints(1, 2), tokenizer.encode("").ids());
        assertArrayEquals(ints(1, 2), tokenizer.encode("\0\u0007\uFFFD").ids());
        assertArrayEquals(ints(1, 3, 4, 2), tokenizer.encode("a \uD83D b").ids());
        assertArrayEquals(ints(1, 0, 2), tokenizer.encode("x".repeat(100_000)).ids());
        assertEquals(100_002, tokenizer.encode("d ".repeat(100_000)).length());
    }

    /** Special tokens inside a text are found as they are. */
    @Test
    public void specialTokensInsideATextAreFound() throws IOException {
        assertArrayEquals(ints(1, 3, 2, 4, 2), TinyFiles.read(TinyFiles.bert()).encode("a[SEP]b").ids());
    }

    /** Several threads get what one gets. */
    @Test
    public void severalThreadsMayRead() throws Exception {
        Tokenizer tokenizer = TinyFiles.read(TinyFiles.bert());
        String text = "words and a b d, ".repeat(200);
        int[] alone = tokenizer.encode(text).ids();
        ExecutorService threads = Executors.newFixedThreadPool(4);
        try {
            List<Callable<int[]>> work = new ArrayList<>();
            for (int i = 0; i < 40; i++) {
                work.add(() -> tokenizer.encode(text).ids());
            }
            for (Future<int[]> made : threads.invokeAll(work)) {
                assertArrayEquals(alone, made.get());
            }
        } finally {
            threads.shutdown();
        }
    }

    /** Scores are read with the library's rounding, which is off by the last bit here. */
    @Test
    public void scoresAreRoundedAsTheLibraryRounds() {
        assertEquals(-15.27549237953228, org.pocketbert.tokenizers.models.Scores.parse("-15.275492379532281"), 0);
        assertEquals(-9.90870174183882, org.pocketbert.tokenizers.models.Scores.parse("-9.908701741838819"), 0);
        assertEquals(1e-7, org.pocketbert.tokenizers.models.Scores.parse("1e-7"), 0);
        assertEquals(12.0, org.pocketbert.tokenizers.models.Scores.parse("12"), 0);
        for (String wrong : new String[] {"", "-", "01", "1.", ".5", "1e", "1e999999", "NaN", "1e400"}) {
            assertThrows(wrong, IllegalArgumentException.class, () -> org.pocketbert.tokenizers.models.Scores.parse(wrong));
        }
    }
}
