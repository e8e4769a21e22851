package org.pocketbert.answers;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;

import java.util.List;
import org.junit.Test;
import org.pocketbert.answers.Neighbours.Neighbour;

public class PartsTest {
    @Test
    public void placesInCodePointsBecomePiecesOfJavaText() {
        String text = "a😀b🙂";
        assertEquals("😀b", CodePoints.piece(text, 1, 3));
        assertEquals("🙂", CodePoints.piece(text, 3, 4));
        assertEquals("🙂", CodePoints.piece(text, 3, 400));
        assertEquals("", CodePoints.piece(text, 2, 2));
        assertEquals("", CodePoints.piece(text, 3, 1));
        assertEquals(3, CodePoints.index(text, 2));
    }

    @Test
    public void scoresStayFiniteForLargeLogits() {
        assertArrayEquals(new double[] {1, 0}, Scores.softmax(new float[] {3e4f, -3e4f}), 0);
        assertArrayEquals(new double[] {0.5, 0.5}, Scores.softmax(new float[] {1e4f, 1e4f}), 0);
        assertArrayEquals(new double[] {0.9, 0.1}, Scores.softmax(new float[] {2 * (float) Math.log(9), 0}, 2), 1e-7);
        assertArrayEquals(new double[] {0.75, 0.25}, Scores.raised(new float[] {0.9f, 0.1f}, 2), 1e-7);
        assertArrayEquals(new double[] {1, 0}, Scores.raised(new float[] {1, 0}, 0.5), 1e-12);
        assertArrayEquals(new double[] {0.75, 0.25}, Scores.raised(new float[] {0.75f, 0.25f}, 1), 0);
        assertArrayEquals(new double[] {1, 0.5, 0}, Scores.sigmoid(new float[] {3e4f, 0, -3e4f}), 1e-300);
    }

    @Test
    public void equalNumbersKeepTheirOrder() {
        assertArrayEquals(new int[] {1, 3, 0, 2}, Scores.ranking(new double[] {1, 2, 1, 2}));
        assertEquals(1, Scores.largest(new double[] {1, 2, 1, 2}));
    }

    @Test
    public void theNearestSentencesComeFirst() {
        float[] query = {1, 1};
        List<float[]> sentences = List.of(new float[] {-1, -1}, new float[] {3, 3}, new float[] {0, 2}, new float[] {0, 0});
        List<Neighbour> found = Neighbours.nearest(query, sentences, 3);
        assertEquals(List.of(1, 2, 3), found.stream().map(Neighbour::index).toList());
        assertEquals(1, found.get(0).cosine(), 1e-12);
        assertEquals(Math.sqrt(0.5), found.get(1).cosine(), 1e-12);
        assertEquals(0, found.get(2).cosine(), 0); // a vector of zeros
        assertThrows(IllegalArgumentException.class, () -> Neighbours.cosine(query, new float[3]));
    }

    @Test
    public void aMatrixThatIsNotFullIsRefused() {
        assertThrows(IllegalArgumentException.class, () -> new Matrix(new float[5], 2, 3));
    }
}
