package org.pocketbert.selftest;

import java.util.Arrays;
import java.util.List;
import org.pocketbert.answers.Matrix;
import org.pocketbert.artefacts.ArtefactException;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.NamedHead;

/**
 * Says how much of a recorded tolerance each column is allowed. A tolerance is recorded for the spread of all outputs together: a head
 * whose outputs differ less has as much less of it, since it could be entirely wrong otherwise.
 */
final class ToleranceShares {
    private static final double LEAST = 0.1; // of the largest output, as logit_scale of the Python side has it
    private static final double TINY = 1e-6;

    private ToleranceShares() {}

    /**
     * Returns the share of each column; empty for one head, which is allowed all of it.
     *
     * @throws ArtefactException if the recorded rows cannot be read
     */
    static double[] read(Artefacts artefacts) throws ArtefactException {
        if (artefacts.heads().size() == 1) {
            return new double[0];
        }
        List<Matrix> recorded = GoldenRow.references(artefacts);
        double[] shares = new double[artefacts.labels().size()];
        double all = scale(recorded, 0, shares.length);
        for (NamedHead head : artefacts.heads()) {
            int stop = head.start() + head.width();
            Arrays.fill(shares, head.start(), stop, scale(recorded, head.start(), stop) / all);
        }
        return shares;
    }

    /** Returns the largest standard deviation of a column, or a tenth of the largest number. */
    private static double scale(List<Matrix> recorded, int start, int stop) {
        double scale = TINY;
        for (int column = start; column < stop; column++) {
            double sum = 0;
            double largest = 0;
            int count = 0;
            for (Matrix matrix : recorded) {
                for (int row = 0; row < matrix.rows(); row++) {
                    sum += matrix.at(row, column);
                    largest = Math.max(largest, Math.abs(matrix.at(row, column)));
                    count++;
                }
            }
            double squares = 0;
            for (Matrix matrix : recorded) {
                for (int row = 0; row < matrix.rows(); row++) {
                    squares += Math.pow(matrix.at(row, column) - sum / count, 2);
                }
            }
            scale = Math.max(scale, Math.max(Math.sqrt(squares / count), LEAST * largest));
        }
        return scale;
    }
}
