package org.pocketbert.engines;

/**
 * Holds one output of a model as 32-bit floats.
 *
 * @param values the numbers in row-major order
 * @param shape the size of each axis; the product is the number of values
 */
public record Tensor(float[] values, int[] shape) {
    /** Checks that the shape fits the number of values. */
    public Tensor {
        long size = 1;
        for (int axis : shape) {
            size *= axis;
        }
        if (size != values.length) {
            throw new IllegalArgumentException(
                    "A tensor of shape " + java.util.Arrays.toString(shape) + " has " + size + " values, not " + values.length
                            + ".");
        }
    }

    /** Returns the values of one row: everything under the first axis at an index (0-based). */
    public float[] row(int index) {
        int size = values.length / shape[0];
        return java.util.Arrays.copyOfRange(values, index * size, (index + 1) * size);
    }
}
