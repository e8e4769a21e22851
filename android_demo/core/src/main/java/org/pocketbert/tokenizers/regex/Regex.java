package org.pocketbert.tokenizers.regex;

import java.util.Arrays;
import org.pocketbert.tokenizers.unicode.CodePointSet;

/**
 * A regular expression as the {@code tokenizers} library reads it (Oniguruma), over code points and the tables of this module.
 *
 * <p>Java's own engine is not used: its classes of characters change with each release, it knows no {@code \K}, and it
 * overflows the stack on long words. Immutable; may be used by several threads.
 */
public final class Regex {
    private final int[] steps;
    private final CodePointSet[] sets;
    private final CodePointSet word;

    private Regex(Node node) {
        Program program = new Program(node);
        steps = program.steps();
        sets = program.sets();
        word = org.pocketbert.tokenizers.unicode.Unicode.property("word");
    }

    /**
     * Reads a regular expression.
     *
     * @throws IllegalArgumentException Naming what in it is not supported.
     */
    public static Regex of(String pattern) {
        return new Regex(RegexParser.parse(pattern));
    }

    /** Makes one that finds a text. */
    public static Regex literal(String text) {
        java.util.List<Node> letters = new java.util.ArrayList<>();
        text.codePoints().forEach(code -> letters.add(new Node.One(CodePointSet.of(code, code))));
        return new Regex(new Node.Chain(letters));
    }

    /**
     * Finds all matches, one behind the other.
     *
     * @param text Code points.
     * @param length How many of them count.
     * @return First and behind-last index of each match.
     */
    public int[] matches(int[] text, int length) {
        Matcher matcher = new Matcher(text, length);
        int[] out = new int[64];
        int used = 0;
        int from = 0;
        int lastEnd = -1;
        while (from <= length && matcher.search(from)) {
            if (matcher.start == matcher.end && matcher.end == lastEnd) {
                from++; // nothing, right behind the last match
                continue;
            }
            if (used == out.length) {
                out = Arrays.copyOf(out, 2 * used);
            }
            out[used++] = matcher.start;
            out[used++] = matcher.end;
            from = matcher.end;
            lastEnd = matcher.end;
        }
        return Arrays.copyOf(out, used);
    }

    /** One search through one text. */
    private final class Matcher {
        private static final int FRAME = 4; // step, place, lowest place of a run or -1, start of the match

        private final int[] text;
        private final int length;
        private int[] stack = new int[256];
        private int top;
        private int keep;
        private int start;
        private int end;

        Matcher(int[] text, int length) {
            this.text = text;
            this.length = length;
        }

        boolean search(int from) {
            for (int at = from; at <= length; at++) {
                keep = at;
                int found = run(0, at, -1);
                if (found >= 0) {
                    start = Math.min(keep, found);
                    end = found;
                    return true;
                }
            }
            return false;
        }

        private void push(int step, int place, int lowest) {
            if (top + FRAME > stack.length) {
                stack = Arrays.copyOf(stack, 2 * stack.length);
            }
            stack[top++] = step;
            stack[top++] = place;
            stack[top++] = lowest;
            stack[top++] = keep;
        }

        /** Runs the steps from one on; returns where they end, at {@code target} if that is not negative, or -1. */
        private int run(int first, int place, int target) {
            int base = top;
            int step = first;
            int at = place;
            while (true) {
                int next = -1;
                switch (steps[step]) {
                    case Program.SET -> {
                        if (at < length && sets[steps[step + 1]].contains(text[at])) {
                            at++;
                            next = step + 4;
                        }
                    }
                    case Program.RUN -> {
                        int last = runEnd(step, at);
                        int lowest = at + steps[step + 2];
                        if (last >= lowest) {
                            if (last > lowest) {
                                push(step + 4, last - 1, lowest);
                            }
                            at = last;
                            next = step + 4;
                        }
                    }
                    case Program.SPLIT -> {
                        push(steps[step + 2], at, -1);
                        next = steps[step + 1];
                    }
                    case Program.JUMP -> next = steps[step + 1];
                    case Program.LOOK -> next = look(step, at) ? steps[step + 2] : -1;
                    case Program.ATOMIC -> {
                        int reached = run(step + 4, at, -1);
                        if (reached >= 0) {
                            at = reached;
                            next = steps[step + 1];
                        }
                    }
                    case Program.PLACE -> next = holds(steps[step + 1], at) ? step + 4 : -1;
                    default -> {
                        if (target < 0 || at == target) {
                            top = base;
                            return at;
                        }
                    }
                }
                if (next >= 0) {
                    step = next;
                    continue;
                }
                if (top == base) {
                    return -1;
                }
                top -= FRAME;
                step = stack[top];
                at = stack[top + 1];
                keep = stack[top + 3];
                if (stack[top + 2] >= 0 && at > stack[top + 2]) {
                    stack[top + 1]--; // the run has still shorter ends
                    top += FRAME;
                }
            }
        }

        private int runEnd(int step, int at) {
            CodePointSet set = sets[steps[step + 1]];
            int limit = (int) Math.min(length, (long) at + steps[step + 3]);
            int last = at;
            while (last < limit && set.contains(text[last])) {
                last++;
            }
            return last;
        }

        private boolean look(int step, int at) {
            boolean ahead = (steps[step + 1] & 1) != 0;
            boolean negative = (steps[step + 1] & 2) != 0;
            int kept = keep;
            boolean found = false;
            if (ahead) {
                found = run(step + 4, at, -1) >= 0;
            } else {
                int most = Math.min(steps[step + 3] & 255, at);
                for (int back = steps[step + 3] >> 8; back <= most && !found; back++) {
                    found = run(step + 4, at - back, at) >= 0;
                }
            }
            keep = kept;
            return found != negative;
        }

        private boolean holds(int condition, int at) {
            return switch (condition) {
                case Program.TEXT_START -> at == 0;
                case Program.TEXT_END -> at == length;
                case Program.LAST_LINE_END -> at == length || (at == length - 1 && text[at] == '\n');
                case Program.LINE_START -> at == 0 || (text[at - 1] == '\n' && at < length);
                case Program.LINE_END -> at == length || text[at] == '\n';
                case Program.BOUNDARY -> isWord(at - 1) != isWord(at);
                case Program.NO_BOUNDARY -> isWord(at - 1) == isWord(at);
                default -> {
                    keep = at;
                    yield true;
                }
            };
        }

        private boolean isWord(int at) {
            return at >= 0 && at < length && word.contains(text[at]);
        }
    }
}
