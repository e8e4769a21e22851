package org.pocketbert.tokenizers.unicode;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Gives what the {@code tokenizers} library knows of characters, on every Java version and Android release alike.
 *
 * <p>Java's own tables are never asked: each release has another version of Unicode, and the library has several at once. The
 * tables are the resource {@code unicode.bin}, written by {@code scripts/unicode_tables.py} from the library's own answers.
 */
public final class Unicode {
    /** White space of Rust's {@code char::is_whitespace}. */
    public static final CodePointSet SPACE;
    /** Numbers of Rust's {@code char::is_numeric}. */
    public static final CodePointSet NUMERIC;
    /** Punctuation of the pre-tokenizers BertPreTokenizer and Punctuation. */
    public static final CodePointSet PUNCTUATION;
    /** Letters, digits and the like that the pre-tokenizer Whitespace keeps together ({@code \w} of Rust's regex). */
    public static final CodePointSet WORD;
    /** What BertNormalizer removes as control characters. */
    public static final CodePointSet BERT_REMOVED;
    /** Accents that BertNormalizer removes. */
    public static final CodePointSet NONSPACING;
    /** Accents that StripAccents removes. */
    public static final CodePointSet COMBINING;

    static final CodePointTexts LOWERCASE;
    static final CodePointTexts NFD;
    static final CodePointTexts NFKD;
    static final CodePointTexts COMPOSED;
    static final CodePointNumbers COMBINING_CLASS;
    static final CodePointNumbers GRAPHEMES;
    static final CodePointNumbers CATEGORY;

    private static final List<String> CATEGORIES = List.of(
            "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
            "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn", "Cs");
    private static final List<String> CLASSES = List.of("alpha", "lower", "upper", "space", "word", "classword");
    private static final List<String> SCRIPTS = List.of("han", "hiragana", "katakana", "hangul", "thai");
    private static final Map<String, Object> TABLES = read();

    static {
        SPACE = set("rust_space");
        NUMERIC = set("rust_numeric");
        PUNCTUATION = set("punctuation");
        WORD = set("word");
        BERT_REMOVED = set("bert_removed");
        NONSPACING = set("nonspacing");
        COMBINING = set("combining");
        LOWERCASE = (CodePointTexts) TABLES.get("lowercase");
        NFD = (CodePointTexts) TABLES.get("nfd");
        NFKD = (CodePointTexts) TABLES.get("nfkd");
        COMPOSED = (CodePointTexts) TABLES.get("composed");
        COMBINING_CLASS = (CodePointNumbers) TABLES.get("combining_class");
        GRAPHEMES = (CodePointNumbers) TABLES.get("graphemes");
        CATEGORY = (CodePointNumbers) TABLES.get("category");
    }

    private Unicode() {}

    /**
     * Returns a class of characters by the name that regular expressions give it.
     *
     * @param name Such as {@code L}, {@code Nd}, {@code Alpha}, {@code Han}; upper and lower case are the same.
     * @return The characters; null where the name is none of those that are stored.
     */
    public static CodePointSet property(String name) {
        String wanted = name.toLowerCase(java.util.Locale.ROOT).replace("_", "").replace(" ", "");
        if (SCRIPTS.contains(wanted)) {
            return set("script_" + wanted);
        }
        if (CLASSES.contains(wanted)) {
            return set("regex_" + wanted);
        }
        if (wanted.equals("alnum")) {
            return set("regex_alpha").union(CATEGORY.having(1 + CATEGORIES.indexOf("Nd")));
        }
        CodePointSet out = null;
        for (int i = 0; i < CATEGORIES.size(); i++) {
            String category = CATEGORIES.get(i).toLowerCase(java.util.Locale.ROOT);
            if (category.equals(wanted) || (wanted.length() == 1 && category.startsWith(wanted))) {
                CodePointSet one = category.equals("cn") ? CATEGORY.none() : CATEGORY.having(i + 1);
                out = out == null ? one : out.union(one);
            }
        }
        return out;
    }

    /** Returns the lower case of the characters that have another one. */
    public static CodePointTexts lowercase() {
        return LOWERCASE;
    }

    private static CodePointSet set(String name) {
        return (CodePointSet) TABLES.get(name);
    }

    private static Map<String, Object> read() {
        try (InputStream stream = Unicode.class.getResourceAsStream("/org/pocketbert/tokenizers/unicode.bin")) {
            if (stream == null) {
                throw new IllegalStateException(
                        "org/pocketbert/tokenizers/unicode.bin is not on the class path: pack core's resources into the app.");
            }
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            byte[] buffer = new byte[1 << 14];
            for (int n = stream.read(buffer); n >= 0; n = stream.read(buffer)) {
                all.write(buffer, 0, n);
            }
            return new Tables(all.toByteArray()).all();
        } catch (IOException error) {
            throw new IllegalStateException("unicode.bin cannot be read: " + error.getMessage(), error);
        }
    }

    /** Reads the tables: numbers of 7 bits a byte, see scripts/unicode_tables.py. */
    private static final class Tables {
        private final byte[] raw;
        private int at = 4;

        Tables(byte[] raw) {
            this.raw = raw;
            if (raw.length < 5 || !new String(raw, 0, 4, StandardCharsets.US_ASCII).equals("PBU1")) {
                throw new IllegalStateException("unicode.bin is not a file of tables: write it with scripts/unicode_tables.py.");
            }
        }

        Map<String, Object> all() {
            Map<String, Object> out = new HashMap<>();
            int count = number();
            for (int i = 0; i < count; i++) {
                int length = number();
                String name = new String(raw, at, length, StandardCharsets.US_ASCII);
                at += length;
                int kind = number();
                out.put(name, kind == 2 ? texts() : runs(kind == 1));
            }
            return out;
        }

        private int number() {
            int out = 0;
            for (int shift = 0; ; shift += 7) {
                int next = raw[at++];
                out |= (next & 127) << shift;
                if (next >= 0) {
                    return out;
                }
            }
        }

        private Object runs(boolean numbers) {
            int count = number();
            int[] firsts = new int[count];
            int[] lasts = new int[count];
            byte[] values = new byte[count];
            int last = 0;
            for (int i = 0; i < count; i++) {
                firsts[i] = last + number();
                lasts[i] = firsts[i] + number();
                last = lasts[i];
                values[i] = numbers ? (byte) number() : 1;
            }
            CodePointNumbers made = new CodePointNumbers(firsts, lasts, values);
            return numbers ? made : made.having(1);
        }

        private CodePointTexts texts() {
            int count = number();
            int[] codes = new int[count];
            int[] ends = new int[count];
            int[] texts = new int[8 * count + 64];
            int used = 0;
            int last = 0;
            for (int i = 0; i < count; i++) {
                codes[i] = last + number();
                last = codes[i];
                int length = number();
                for (int k = 0; k < length; k++) {
                    int step = number();
                    if (used == texts.length) {
                        texts = java.util.Arrays.copyOf(texts, 2 * used);
                    }
                    texts[used++] = codes[i] + ((step & 1) == 0 ? step >>> 1 : -(step >>> 1));
                }
                ends[i] = used;
            }
            return new CodePointTexts(codes, ends, java.util.Arrays.copyOf(texts, used));
        }
    }
}
