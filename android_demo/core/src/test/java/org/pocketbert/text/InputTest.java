package org.pocketbert.text;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;

import java.util.List;
import org.junit.Test;
import org.pocketbert.artefacts.Task;
import org.pocketbert.text.TextException.Reason;

public class InputTest {
    private static TextException refused(Input input, Task task) {
        return assertThrows(TextException.class, () -> input.check(task));
    }

    @Test
    public void anEmptyTextIsRefused() {
        for (String text : List.of("", " ", "\n\t\u2003")) {
            assertEquals(Reason.EMPTY, refused(Input.of(text), Task.TEXT_CLASSIFICATION).reason());
        }
        assertEquals(Reason.EMPTY, refused(new Input("who?", ""), Task.QUESTION_ANSWERING).reason());
        assertEquals(
                "The text is empty. Write at least one word.", refused(Input.of(null), Task.FILL_MASK).getMessage());
    }

    @Test
    public void aHundredThousandCharactersAreRefusedWithTheLimit() {
        TextException e = refused(Input.of("x".repeat(100_000)), Task.TEXT_CLASSIFICATION);
        assertEquals(Reason.TOO_LONG, e.reason());
        assertEquals(
                String.format("The text has %,d characters; at most %,d are read. Shorten it.", 100_000, 50_000),
                e.getMessage());
    }

    @Test
    public void charactersAreCountedAndNotUtf16Units() throws Exception {
        Input.of("🙂".repeat(Input.MAX_CHARACTERS)).check(Task.TEXT_CLASSIFICATION);
        assertEquals(
                Reason.TOO_LONG,
                refused(Input.of("🙂".repeat(Input.MAX_CHARACTERS + 1)), Task.TEXT_CLASSIFICATION).reason());
    }

    @Test
    public void halfACharacterIsRefused() {
        for (String text : List.of("a\ud83d", "\ude42a", "a\ud83db")) {
            assertEquals(Reason.NOT_UNICODE, refused(Input.of(text), Task.TEXT_CLASSIFICATION).reason());
        }
    }

    @Test
    public void theTaskDecidesHowManyTextsThereAre() throws Exception {
        assertEquals(Reason.NUMBER_OF_TEXTS, refused(Input.of("who?"), Task.QUESTION_ANSWERING).reason());
        Input pair = new Input("a", "b");
        for (Task task : List.of(Task.TOKEN_CLASSIFICATION, Task.FILL_MASK, Task.FEATURE_EXTRACTION)) {
            assertEquals(Reason.NUMBER_OF_TEXTS, refused(pair, task).reason());
        }
        pair.check(Task.TEXT_CLASSIFICATION);
        pair.check(Task.REGRESSION);
    }
}
