package org.pocketbert.tokenizers;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertThrows;

import java.util.Base64;
import java.util.Random;
import org.junit.Test;

public class Base64BytesTest {
    @Test
    public void bytesAreThoseOfJava() {
        Random random = new Random(1);
        for (int length = 0; length < 200; length++) {
            byte[] bytes = new byte[length];
            random.nextBytes(bytes);
            assertArrayEquals(bytes, Base64Bytes.of(Base64.getEncoder().encodeToString(bytes)));
        }
    }

    @Test
    public void otherTextsAreRefused() {
        assertThrows(IllegalArgumentException.class, () -> Base64Bytes.of("AAA"));
        assertThrows(IllegalArgumentException.class, () -> Base64Bytes.of("AA-A"));
        assertThrows(IllegalArgumentException.class, () -> Base64Bytes.of("A=AA"));
    }
}
