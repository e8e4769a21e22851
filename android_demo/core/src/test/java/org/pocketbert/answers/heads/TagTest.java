package org.pocketbert.answers.heads;

import static org.junit.Assert.assertEquals;

import java.util.List;
import org.junit.Test;

public class TagTest {
    @Test
    public void tagsAreReadStrictly() {
        List<Word> words = List.of(new Word(1, 0, 2), new Word(2, 3, 5), new Word(3, 6, 8));
        List<String> tags = List.of("O", "B-x", "I-x", "I-y", "S-x", "E-x", "z");
        assertEquals(List.of(new Tag.Run(0, 8, "x")), Tag.runs(tags, List.of(1, 2, 5), words));
        assertEquals(List.of(), Tag.runs(tags, List.of(2, 3, 0), words)); // no beginning
        assertEquals(
                List.of(new Tag.Run(0, 2, "x"), new Tag.Run(3, 5, "x"), new Tag.Run(6, 8, "x")),
                Tag.runs(tags, List.of(1, 1, 4), words));
        assertEquals(List.of(new Tag.Run(0, 2, "x")), Tag.runs(tags, List.of(1, 3, 2), words));
        assertEquals(List.of(new Tag.Run(0, 5, "z")), Tag.runs(tags, List.of(6, 6, 0), words));
    }

    /** Tags of parts of speech have no prefix: each word is a piece, and equal neighbours stay apart. */
    @Test
    public void tagsWithoutPrefixesMarkEachWord() {
        List<Word> words = List.of(new Word(1, 0, 2), new Word(2, 3, 5), new Word(3, 6, 8));
        assertEquals(
                List.of(new Tag.Run(0, 2, "NOUN"), new Tag.Run(3, 5, "NOUN"), new Tag.Run(6, 8, "VERB")),
                Tag.runs(List.of("NOUN", "VERB"), List.of(0, 0, 1), words));
        assertEquals(
                List.of(new Tag.Run(0, 2, "x"), new Tag.Run(3, 5, "x")), Tag.runs(List.of("O", "x"), List.of(1, 1, 0), words));
    }
}
