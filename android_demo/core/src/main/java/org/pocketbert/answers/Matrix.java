package org.pocketbert.answers;

/**
 * Holds the outputs for one input without its padding.
 *
 * @param values numbers in row-major order
 * @param rows 1, or the number of tokens (of fill-mask: of masked tokens)
 * @param columns labels, numbers of a vector, or 2 for start and end
 */
public record Matrix(float[] values, int rows, int columns) {
    /** Checks that the numbers fill the matrix. */
    public Matrix {
        if (values.length != rows * columns) {
            throw new IllegalArgumentException(
                    "A matrix of " + rows + " rows and " + columns + " columns has " + values.length + " values.");
        }
    }

    /** Returns one number. */
    public float at(int row, int column) {
        return values[row * columns + column];
    }

    /** Returns the numbers of one row. */
    public float[] row(int row) {
        return java.util.Arrays.copyOfRange(values, row * columns, (row + 1) * columns);
    }

    /** Returns the numbers of one column. */
    public double[] column(int column) {
        double[] out = new double[rows];
        for (int row = 0; row < rows; row++) {
            out[row] = at(row, column);
        }
        return out;
    }

    /** Returns some of the columns; this matrix itself where it has no others. A width of -1 stands for all. */
    public Matrix columns(int start, int width) {
        if (width < 0 || width == columns) {
            return this;
        }
        float[] out = new float[rows * width];
        for (int row = 0; row < rows; row++) {
            System.arraycopy(values, row * columns + start, out, row * width, width);
        }
        return new Matrix(out, rows, width);
    }

    /** Returns whether no number is NaN or infinite. */
    public boolean isFinite() {
        for (float value : values) {
            if (Float.isNaN(value) || Float.isInfinite(value)) {
                return false;
            }
        }
        return true;
    }
}
