package org.pocketbert.artefacts;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;

/**
 * Describes a head of a folder's model: the only one, or one of several on one encoder.
 *
 * @param name its name, such as {@code intent}; empty where the folder has one head
 * @param task what it does
 * @param labels names of its outputs in order of their ids, without its own name in front; empty for tasks without labels
 * @param score turns its outputs into scores: {@code softmax}, {@code sigmoid} or {@code none}
 * @param thresholds probability from which each label is given (multi-label); empty for other tasks
 * @param outputs the outputs of a file that its answer is made from
 * @param start its first column where the outputs of all heads stand side by side
 */
public record NamedHead(
        String name,
        Task task,
        List<String> labels,
        String score,
        double[] thresholds,
        List<String> outputs,
        int start) {
    private static final int FEWEST = 2;
    private static final int MOST = 16;
    private static final double THRESHOLD = 0.5;

    /** Describes the only head of a folder. */
    public static NamedHead only(Task task, List<String> labels, String score, double[] thresholds) {
        return new NamedHead("", task, labels, score, thresholds, task.outputs(), 0);
    }

    /**
     * Reads several heads, in order of their columns.
     *
     * @param heads the task of each by its name
     * @param labels labels of all heads in order of their columns, each with the name of its head in front
     */
    static List<NamedHead> several(Fields heads, List<String> labels) {
        List<NamedHead> out = new ArrayList<>();
        for (String name : heads.keys()) {
            Task task = Task.named(heads.text(name));
            if (task == null || !task.canBeOneOfSeveral()) {
                throw new Fields.WrongField("heads." + name + " is '" + heads.text(name) + "', no task of one of several heads.");
            }
            out.add(of(name, task, labels));
        }
        out.sort(Comparator.comparingInt(NamedHead::start));
        int columns = 0;
        boolean fits = out.size() >= FEWEST && out.size() <= MOST;
        for (NamedHead head : out) {
            fits &= head.start() == columns; // -1 where it has no label
            columns += head.width();
        }
        if (!fits || columns != labels.size()) {
            throw new Fields.WrongField("heads (" + String.join(", ", heads.keys()) + ") do not fit the labels.");
        }
        return List.copyOf(out);
    }

    private static NamedHead of(String name, Task task, List<String> labels) {
        String prefix = name + ": ";
        int start = -1;
        List<String> own = new ArrayList<>();
        for (int column = 0; column < labels.size(); column++) {
            if (labels.get(column).startsWith(prefix)) {
                start = own.isEmpty() ? column : start;
                own.add(labels.get(column).substring(prefix.length()));
            }
        }
        double[] thresholds = new double[task == Task.MULTI_LABEL ? own.size() : 0];
        Arrays.fill(thresholds, THRESHOLD);
        List<String> names = task.namesLabels() ? List.copyOf(own) : List.of();
        return new NamedHead(name, task, names, task.score(), thresholds, List.of(name + "_logits"), start);
    }

    /** Returns how many columns it has; -1 where the folder does not fix it. */
    public int width() {
        return task.namesLabels() ? labels.size() : task == Task.REGRESSION ? 1 : -1;
    }
}
