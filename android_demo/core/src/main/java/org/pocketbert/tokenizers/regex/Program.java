package org.pocketbert.tokenizers.regex;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.pocketbert.tokenizers.unicode.CodePointSet;

/** A regular expression as a list of steps: four numbers each, the kind and up to three others. */
final class Program {
    static final int SET = 0; // a set
    static final int RUN = 1; // as many of a set as there are, at least so many, at most so many
    static final int SPLIT = 2; // first try, second try
    static final int JUMP = 3; // where to
    static final int LOOK = 4; // 1 ahead + 2 negative, step behind it, lengths
    static final int ATOMIC = 5; // step behind it
    static final int PLACE = 6; // which condition
    static final int END = 7;

    static final int TEXT_START = 0;
    static final int TEXT_END = 1;
    static final int LAST_LINE_END = 2;
    static final int LINE_START = 3;
    static final int LINE_END = 4;
    static final int BOUNDARY = 5;
    static final int NO_BOUNDARY = 6;
    static final int KEEP = 7;

    private static final int LONGEST = 40_000;

    private int[] steps = new int[256];
    private int size;
    private final List<CodePointSet> sets = new ArrayList<>();

    Program(Node node) {
        add(node);
        step(END, 0, 0, 0);
        steps = Arrays.copyOf(steps, size);
    }

    int[] steps() {
        return steps;
    }

    CodePointSet[] sets() {
        return sets.toArray(new CodePointSet[0]);
    }

    private int step(int kind, int a, int b, int c) {
        if (size + 4 > steps.length) {
            if (size > LONGEST) {
                throw new IllegalArgumentException("regular expression with more than " + LONGEST / 4 + " steps, not supported");
            }
            steps = Arrays.copyOf(steps, 2 * size);
        }
        int at = size;
        steps[size++] = kind;
        steps[size++] = a;
        steps[size++] = b;
        steps[size++] = c;
        return at;
    }

    private int set(CodePointSet set) {
        int known = sets.indexOf(set);
        if (known >= 0) {
            return known;
        }
        sets.add(set);
        return sets.size() - 1;
    }

    private void add(Node node) {
        if (node instanceof Node.One one) {
            step(SET, set(one.set()), 0, 0);
        } else if (node instanceof Node.Chain chain) {
            chain.parts().forEach(this::add);
        } else if (node instanceof Node.Choice choice) {
            addChoice(choice.parts());
        } else if (node instanceof Node.Repeat repeat) {
            addRepeat(repeat);
        } else if (node instanceof Node.Place place) {
            step(PLACE, place.kind(), 0, 0);
        } else if (node instanceof Node.Look look) {
            int lengths = look.ahead() ? 0 : look.part().least() << 8 | look.part().most();
            addInside(step(LOOK, (look.ahead() ? 1 : 0) | (look.negative() ? 2 : 0), 0, lengths), 2, look.part());
        } else if (node instanceof Node.Atomic atomic) {
            addInside(step(ATOMIC, 0, 0, 0), 1, atomic.part());
        }
    }

    /** Adds a program inside the program, and writes behind which step it ends into the step that starts it. */
    private void addInside(int starter, int field, Node part) {
        add(part);
        step(END, 0, 0, 0);
        steps[starter + field] = size;
    }

    private void addChoice(List<Node> parts) {
        List<Integer> ends = new ArrayList<>();
        for (int i = 0; i < parts.size(); i++) {
            if (i == parts.size() - 1) {
                add(parts.get(i));
                break;
            }
            int split = step(SPLIT, 0, 0, 0);
            steps[split + 1] = size;
            add(parts.get(i));
            ends.add(step(JUMP, 0, 0, 0));
            steps[split + 2] = size;
        }
        ends.forEach(jump -> steps[jump + 1] = size);
    }

    private void addRepeat(Node.Repeat repeat) {
        if (repeat.part() instanceof Node.One one && repeat.greedy()) {
            int at = step(RUN, set(one.set()), repeat.from(), repeat.to());
            assert at >= 0;
            return;
        }
        for (int i = 0; i < repeat.from(); i++) {
            add(repeat.part());
        }
        if (repeat.to() == Integer.MAX_VALUE) {
            int split = step(SPLIT, 0, 0, 0);
            int inside = size;
            add(repeat.part());
            step(JUMP, split, 0, 0);
            tries(split, inside, size, repeat.greedy());
            return;
        }
        List<Integer> splits = new ArrayList<>();
        List<Integer> insides = new ArrayList<>();
        for (int i = repeat.from(); i < repeat.to(); i++) {
            splits.add(step(SPLIT, 0, 0, 0));
            insides.add(size);
            add(repeat.part());
        }
        for (int i = 0; i < splits.size(); i++) {
            tries(splits.get(i), insides.get(i), size, repeat.greedy());
        }
    }

    private void tries(int split, int inside, int behind, boolean greedy) {
        steps[split + 1] = greedy ? inside : behind;
        steps[split + 2] = greedy ? behind : inside;
    }
}
