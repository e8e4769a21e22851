package org.pocketbert.answers;

/** Turns logits into the scores that a person sees, in 64-bit arithmetic as the Python side does. */
public final class Scores {
    private static final double LARGEST = 700; // exp of more is infinite
    private static final double TINY = 1e-38; // a probability that 32 bits round to 0

    private Scores() {}

    /** Returns the scores of a task: {@code softmax}, {@code sigmoid} or {@code none}. */
    public static double[] of(float[] logits, String function) {
        return switch (function) {
            case "softmax" -> softmax(logits);
            case "sigmoid" -> sigmoid(logits);
            default -> same(logits);
        };
    }

    /** Returns probabilities that add up to 1. */
    public static double[] softmax(float[] logits) {
        return softmax(logits, 1);
    }

    /**
     * Returns probabilities that add up to 1, of logits divided by a temperature. The largest one is that of the largest logit.
     *
     * @param temperature above 0; see {@link org.pocketbert.artefacts.ModelFile#temperature}
     */
    public static double[] softmax(float[] logits, double temperature) {
        double largest = Double.NEGATIVE_INFINITY;
        for (float logit : logits) {
            largest = Math.max(largest, logit);
        }
        double[] out = new double[logits.length];
        double sum = 0;
        for (int i = 0; i < out.length; i++) {
            out[i] = Math.exp((logits[i] - largest) / temperature);
            sum += out[i];
        }
        for (int i = 0; i < out.length; i++) {
            out[i] /= sum;
        }
        return out;
    }

    /** Returns the probabilities that a softmax of logits divided by a temperature would have given, from those without one. */
    public static double[] raised(float[] probabilities, double temperature) {
        if (temperature == 1) {
            return same(probabilities);
        }
        double[] out = new double[probabilities.length];
        double sum = 0;
        for (int i = 0; i < out.length; i++) {
            out[i] = Math.pow(Math.max(probabilities[i], TINY), 1 / temperature);
            sum += out[i];
        }
        for (int i = 0; i < out.length; i++) {
            out[i] /= sum;
        }
        return out;
    }

    /** Returns a probability for each logit by itself. */
    public static double[] sigmoid(float[] logits) {
        double[] out = new double[logits.length];
        for (int i = 0; i < out.length; i++) {
            out[i] = 1 / (1 + Math.exp(-Math.max(-LARGEST, Math.min(LARGEST, logits[i]))));
        }
        return out;
    }

    /** Returns the place of the largest number, the first of equal ones. */
    public static int largest(double[] values) {
        int best = 0;
        for (int i = 1; i < values.length; i++) {
            if (values[i] > values[best]) {
                best = i;
            }
        }
        return best;
    }

    /** Returns the places of all numbers, the largest first; equal ones keep their order. */
    public static int[] ranking(double[] values) {
        Integer[] order = new Integer[values.length];
        for (int i = 0; i < order.length; i++) {
            order[i] = i;
        }
        java.util.Arrays.sort(order, (a, b) -> Double.compare(values[b], values[a])); // a stable sort
        int[] out = new int[order.length];
        for (int i = 0; i < out.length; i++) {
            out[i] = order[i];
        }
        return out;
    }

    private static double[] same(float[] logits) {
        double[] out = new double[logits.length];
        for (int i = 0; i < out.length; i++) {
            out[i] = logits[i];
        }
        return out;
    }
}
