package org.pocketbert.tokenizers.regex;

import java.util.List;
import org.pocketbert.tokenizers.unicode.CodePointSet;

/** A part of a regular expression. */
interface Node {
    /** Returns the fewest code points that the part can match. */
    int least();

    /** Returns the most code points that the part can match; {@link Integer#MAX_VALUE} without an end. */
    int most();

    /** One character of a set. */
    record One(CodePointSet set) implements Node {
        @Override
        public int least() {
            return 1;
        }

        @Override
        public int most() {
            return 1;
        }
    }

    /** Parts one behind the other. */
    record Chain(List<Node> parts) implements Node {
        @Override
        public int least() {
            return parts.stream().mapToInt(Node::least).sum();
        }

        @Override
        public int most() {
            long sum = parts.stream().mapToLong(Node::most).sum();
            return (int) Math.min(sum, Integer.MAX_VALUE);
        }
    }

    /** The first of some parts that lets the rest match. */
    record Choice(List<Node> parts) implements Node {
        @Override
        public int least() {
            return parts.stream().mapToInt(Node::least).min().orElse(0);
        }

        @Override
        public int most() {
            return parts.stream().mapToInt(Node::most).max().orElse(0);
        }
    }

    /** A part several times. */
    record Repeat(Node part, int from, int to, boolean greedy) implements Node {
        @Override
        public int least() {
            return (int) Math.min((long) from * part.least(), Integer.MAX_VALUE);
        }

        @Override
        public int most() {
            return (int) Math.min((long) to * part.most(), Integer.MAX_VALUE);
        }
    }

    /** A part that, once it has matched, is not tried in another way. */
    record Atomic(Node part) implements Node {
        @Override
        public int least() {
            return part.least();
        }

        @Override
        public int most() {
            return part.most();
        }
    }

    /** A part that must, or must not, match behind or before the place, without being taken. */
    record Look(Node part, boolean ahead, boolean negative) implements Node {
        @Override
        public int least() {
            return 0;
        }

        @Override
        public int most() {
            return 0;
        }
    }

    /** A condition of the place itself; {@link Program} names them. */
    record Place(int kind) implements Node {
        @Override
        public int least() {
            return 0;
        }

        @Override
        public int most() {
            return 0;
        }
    }
}
