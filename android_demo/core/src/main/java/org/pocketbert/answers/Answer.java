package org.pocketbert.answers;

/** Holds what a model answers to one input; each task has a class of its own. */
public interface Answer {
    /** Returns whether the text was longer than the model takes, so that its end was not read. */
    boolean truncated();
}
