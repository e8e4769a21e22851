package org.pocketbert.tokenizers.regex;

import org.pocketbert.tokenizers.unicode.CodePointSet;
import org.pocketbert.tokenizers.unicode.Unicode;

/** Reads sets of characters: {@code [...]} with sets inside and {@code &&}, and escapes such as {@code \p{L}}. */
final class SetParser {
    private static final int DEEPEST = 50;
    private static final CodePointSet NOTHING = CodePointSet.of();

    private final RegexText text;
    private int depth;

    SetParser(RegexText text) {
        this.text = text;
    }

    /** Reads the rest of a set whose opening bracket was taken. */
    CodePointSet set() {
        if (++depth > DEEPEST) {
            throw text.refused("more than " + DEEPEST + " sets inside each other");
        }
        boolean negative = text.take('^');
        if (text.peek() == ']') {
            throw text.refused("an empty set []");
        }
        CodePointSet common = null;
        CodePointSet own = NOTHING;
        while (!text.take(']')) {
            if (text.peek() == '&' && text.peek(1) == '&') {
                text.next();
                text.next();
                common = common == null ? own : common.intersection(own);
                own = NOTHING;
            } else {
                own = own.union(item());
            }
        }
        if (common != null) {
            own = common.intersection(own);
        }
        depth--;
        return negative ? own.complement() : own;
    }

    private CodePointSet item() {
        if (text.peek() == '[') {
            text.next();
            if (text.take(':')) {
                boolean negative = text.take('^');
                CodePointSet named = property(text.until(':'), true);
                if (!text.take(']')) {
                    throw text.refused("a class [: without :]");
                }
                return negative ? named.complement() : named;
            }
            return set();
        }
        int first;
        if (text.peek() == '\\') {
            text.next();
            CodePointSet made = classEscape(true);
            if (made != null) {
                return made;
            }
            first = codeEscape();
        } else {
            first = text.next();
        }
        if (text.peek() != '-' || text.peek(1) == ']') {
            return CodePointSet.of(first, first);
        }
        text.next();
        if (text.peek() == '[') {
            throw text.refused("a range up to a set");
        }
        int last = text.next();
        if (last == '\\') {
            last = codeEscape();
        }
        if (last < first) {
            throw text.refused("a range whose end is before its start");
        }
        return CodePointSet.of(first, last);
    }

    /** Reads an escape whose backslash was taken, as a set. */
    CodePointSet escaped() {
        CodePointSet made = classEscape(false);
        if (made != null) {
            return made;
        }
        int code = codeEscape();
        return CodePointSet.of(code, code);
    }

    /** Reads an escape of a class of characters; null where it is one of a single character. */
    private CodePointSet classEscape(boolean inside) {
        int kind = text.peek();
        String name = switch (kind) {
            case 's', 'S' -> "space";
            case 'w', 'W' -> "word";
            case 'd', 'D' -> "Nd";
            case 'p', 'P' -> "";
            default -> null;
        };
        if (name == null) {
            return null;
        }
        text.next();
        boolean negative = Character.isUpperCase(kind);
        if (name.isEmpty()) {
            if (!text.take('{')) {
                throw text.refused("\\p without {");
            }
            negative ^= text.take('^');
            name = text.until('}');
        }
        CodePointSet out = property(name, inside);
        return negative ? out.complement() : out;
    }

    /** Returns a class of characters; Oniguruma has another one for words inside [...] than outside. */
    private CodePointSet property(String name, boolean inside) {
        String known = name.equals("digit") ? "Nd" : inside && name.equalsIgnoreCase("word") ? "classword" : name;
        CodePointSet out = Unicode.property(known);
        if (out == null) {
            throw text.refused("the class of characters '" + name + "'");
        }
        return out;
    }

    private int codeEscape() {
        int code = text.next();
        return switch (code) {
            case 't' -> '\t';
            case 'n' -> '\n';
            case 'r' -> '\r';
            case 'f' -> '\f';
            case 'v' -> 0xB;
            case 'a' -> 7;
            case 'e' -> 0x1B;
            case 'x' -> text.take('{') ? hexadecimal(text.until('}')) : hexadecimal(digits(2));
            case 'u' -> hexadecimal(digits(4));
            default -> {
                if ((code < 0x80 && Character.isLetterOrDigit(code)) || code >= 0x80) {
                    throw text.refused("the escape \\" + new String(Character.toChars(code)));
                }
                yield code;
            }
        };
    }

    private String digits(int count) {
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < count; i++) {
            out.appendCodePoint(text.next());
        }
        return out.toString();
    }

    private int hexadecimal(String digits) {
        int out = digits.matches("[0-9a-fA-F]{1,6}") ? Integer.parseInt(digits, 16) : -1;
        if (out < 0 || out > 0x10FFFF || (out >= 0xD800 && out < 0xE000)) {
            throw text.refused("the number '" + digits + "', which is no character,");
        }
        return out;
    }
}
