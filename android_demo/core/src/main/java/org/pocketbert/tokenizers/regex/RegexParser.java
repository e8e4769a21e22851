package org.pocketbert.tokenizers.regex;

import java.util.ArrayList;
import java.util.List;
import org.pocketbert.tokenizers.unicode.CodePointSet;

/** Reads a regular expression in the syntax of Oniguruma for Ruby, as far as tokenizers use it, and refuses the rest by name. */
final class RegexParser {
    private static final int DEEPEST = 100;
    private static final int MOST_REPEATS = 1000;
    private static final CodePointSet NOT_NEWLINE = CodePointSet.of('\n', '\n').complement();

    private final RegexText text;
    private int depth;

    private RegexParser(String pattern) {
        text = new RegexText(pattern);
    }

    static Node parse(String pattern) {
        RegexParser parser = new RegexParser(pattern);
        Node out = parser.choice();
        if (!parser.text.atEnd()) {
            throw parser.text.refused("')' without '('");
        }
        return out;
    }

    private Node choice() {
        if (++depth > DEEPEST) {
            throw text.refused("more than " + DEEPEST + " groups inside each other");
        }
        List<Node> parts = new ArrayList<>();
        do {
            parts.add(chain());
        } while (text.take('|'));
        depth--;
        return parts.size() == 1 ? parts.get(0) : new Node.Choice(List.copyOf(parts));
    }

    private Node chain() {
        List<Node> parts = new ArrayList<>();
        while (!text.atEnd() && text.peek() != '|' && text.peek() != ')') {
            parts.add(repeated(one()));
        }
        return parts.size() == 1 ? parts.get(0) : new Node.Chain(List.copyOf(parts));
    }

    private Node repeated(Node part) {
        int from;
        int to;
        boolean counted = false;
        if (text.take('*')) {
            from = 0;
            to = Integer.MAX_VALUE;
        } else if (text.take('+')) {
            from = 1;
            to = Integer.MAX_VALUE;
        } else if (text.take('?')) {
            from = 0;
            to = 1;
        } else if (text.take('{')) {
            counted = true;
            from = text.peek() == ',' ? 0 : text.number(MOST_REPEATS);
            to = from;
            if (text.take(',')) {
                to = text.peek() == '}' ? Integer.MAX_VALUE : text.number(MOST_REPEATS);
            }
            if (!text.take('}') || to < from) {
                throw text.refused("a wrong count in {}");
            }
        } else {
            return part;
        }
        if (part instanceof Node.Place || part instanceof Node.Look) {
            throw text.refused("the repetition of a condition");
        }
        if (to == Integer.MAX_VALUE && part.least() == 0) {
            throw text.refused("the endless repetition of what may be empty");
        }
        boolean lazy = text.take('?');
        boolean possessive = !lazy && !counted && text.take('+');
        if (!text.atEnd() && "*+?{".indexOf(text.peek()) >= 0) {
            throw text.refused("a repetition of a repetition");
        }
        Node out = new Node.Repeat(part, from, to, !lazy);
        return possessive ? new Node.Atomic(out) : out;
    }

    private Node one() {
        int code = text.next();
        return switch (code) {
            case '(' -> group();
            case '[' -> new Node.One(new SetParser(text).set());
            case '.' -> new Node.One(NOT_NEWLINE);
            case '^' -> new Node.Place(Program.LINE_START);
            case '$' -> new Node.Place(Program.LINE_END);
            case '\\' -> escaped();
            case '*', '+', '?', '{', '}', ']' -> throw text.refused("'" + (char) code + "' with nothing before it, or not escaped");
            default -> literal(code);
        };
    }

    private static Node literal(int code) {
        return new Node.One(CodePointSet.of(code, code));
    }

    private Node escaped() {
        int code = text.peek();
        int place = switch (code) {
            case 'A' -> Program.TEXT_START;
            case 'z' -> Program.TEXT_END;
            case 'Z' -> Program.LAST_LINE_END;
            case 'b' -> Program.BOUNDARY;
            case 'B' -> Program.NO_BOUNDARY;
            case 'K' -> Program.KEEP;
            default -> -1;
        };
        if (place >= 0) {
            text.next();
            return new Node.Place(place);
        }
        return new Node.One(new SetParser(text).escaped());
    }

    private Node group() {
        boolean atomic = false;
        int look = 0; // 1 ahead, 2 behind
        boolean negative = false;
        if (text.take('?')) {
            int kind = text.next();
            if (kind == '<' && (text.peek() == '=' || text.peek() == '!')) {
                look = 2;
                negative = text.next() == '!';
            } else if (kind == '=' || kind == '!') {
                look = 1;
                negative = kind == '!';
            } else if (kind == '>') {
                atomic = true;
            } else if (kind != ':') {
                throw text.refused("a group that starts with (?" + new String(Character.toChars(kind)));
            }
        }
        Node inside = choice();
        if (!text.take(')')) {
            throw text.refused("'(' without ')'");
        }
        if (look == 2 && inside.most() > 255) {
            throw text.refused("a look behind of more than 255 characters");
        }
        if (look > 0) {
            return new Node.Look(inside, look == 1, negative);
        }
        return atomic ? new Node.Atomic(inside) : inside;
    }
}
