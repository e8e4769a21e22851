package org.pocketbert.answers;

import java.util.ArrayList;
import java.util.List;

/** Finds the sentences whose vectors are nearest to that of a text. */
public final class Neighbours {
    private static final double LEAST = 1e-12;

    private Neighbours() {}

    /**
     * Holds one sentence.
     *
     * @param index its place in the list
     * @param cosine similarity from -1 to 1
     */
    public record Neighbour(int index, double cosine) {}

    /** Returns the cosine of two vectors of the same width; 0 for a vector of zeros. */
    public static double cosine(float[] one, float[] other) {
        if (one.length != other.length) {
            throw new IllegalArgumentException("vectors of " + one.length + " and " + other.length + " numbers.");
        }
        double product = 0;
        double first = 0;
        double second = 0;
        for (int i = 0; i < one.length; i++) {
            product += (double) one[i] * other[i];
            first += (double) one[i] * one[i];
            second += (double) other[i] * other[i];
        }
        return product / (Math.max(Math.sqrt(first), LEAST) * Math.max(Math.sqrt(second), LEAST));
    }

    /**
     * Returns the nearest sentences, the most similar first; equally similar ones keep their order.
     *
     * @param vector vector of the text
     * @param sentences vectors of the sentences
     * @param most how many are returned at most
     */
    public static List<Neighbour> nearest(float[] vector, List<float[]> sentences, int most) {
        double[] cosines = new double[sentences.size()];
        for (int i = 0; i < cosines.length; i++) {
            cosines[i] = cosine(vector, sentences.get(i));
        }
        List<Neighbour> out = new ArrayList<>();
        for (int index : Scores.ranking(cosines)) {
            if (out.size() < most) {
                out.add(new Neighbour(index, cosines[index]));
            }
        }
        return List.copyOf(out);
    }
}
