package org.pocketbert.statistics;

/** Is told how far a measurement is, and may end it. */
public interface Progress {
    /**
     * Reports one inference.
     *
     * @param done inferences until now, warm-up left out
     * @param planned inferences in all
     * @param millis time of this one in milliseconds
     * @return whether to go on
     */
    boolean report(int done, int planned, double millis);
}
