package org.pocketbert.tokenizers;

import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The fields of one JSON object of tokenizer.json; a field that nobody asks for is refused by name. */
final class Fields {
    private static final int DEEPEST = 32;
    private static final int MOST = 100_000;

    private final String where;
    private final Map<String, Object> content;

    Fields(String where, Map<String, Object> content) {
        this.where = where;
        this.content = content;
    }

    /** Reads any JSON value: a map, a list, a text, a truth value, null, or a number as the text that stands there. */
    static Object value(JsonReader json, String where) throws IOException {
        return value(json, where, 0, new int[1]);
    }

    private static Object value(JsonReader json, String where, int depth, int[] count) throws IOException {
        if (depth > DEEPEST || ++count[0] > MOST) {
            throw new TokenizerException(where + ": more than " + DEEPEST + " levels or " + MOST + " values, refused.");
        }
        JsonToken next = json.peek();
        switch (next) {
            case BEGIN_OBJECT -> {
                Map<String, Object> out = new LinkedHashMap<>();
                json.beginObject();
                while (json.hasNext()) {
                    String name = json.nextName();
                    if (out.containsKey(name)) {
                        throw new TokenizerException(where + ": the key '" + name + "' is there twice.");
                    }
                    out.put(name, value(json, where + "." + name, depth + 1, count));
                }
                json.endObject();
                return out;
            }
            case BEGIN_ARRAY -> {
                List<Object> out = new ArrayList<>();
                json.beginArray();
                while (json.hasNext()) {
                    out.add(value(json, where + "[" + out.size() + "]", depth + 1, count));
                }
                json.endArray();
                return out;
            }
            case BOOLEAN -> {
                return json.nextBoolean();
            }
            case NULL -> {
                json.nextNull();
                return null;
            }
            case NUMBER -> {
                return new Literal(json.nextString());
            }
            default -> {
                return json.nextString();
            }
        }
    }

    /** A number as it is written. */
    record Literal(String text) {}

    @SuppressWarnings("unchecked")
    static Fields of(Object value, String where) throws TokenizerException {
        if (!(value instanceof Map)) {
            throw new TokenizerException(where + ": " + shown(value) + " is no object.");
        }
        return new Fields(where, (Map<String, Object>) value);
    }

    String where() {
        return where;
    }

    boolean has(String name) {
        return content.get(name) != null;
    }

    TokenizerException refused(String what) {
        return new TokenizerException(where + ": " + what);
    }

    /** Takes a text; {@code otherwise} where it is not there, unless that is null. */
    String text(String name, String otherwise) throws TokenizerException {
        Object value = content.remove(name);
        if (value == null && otherwise != null) {
            return otherwise;
        }
        if (!(value instanceof String)) {
            throw refused("'" + name + "' is " + shown(value) + ", it must be a text.");
        }
        return (String) value;
    }

    boolean flag(String name, Boolean otherwise) throws TokenizerException {
        Object value = content.remove(name);
        if (value == null && otherwise != null) {
            return otherwise;
        }
        if (!(value instanceof Boolean)) {
            throw refused("'" + name + "' is " + shown(value) + ", it must be true or false.");
        }
        return (Boolean) value;
    }

    /** Takes a whole number from 0 to {@code most}. */
    int number(String name, Integer otherwise, int most) throws TokenizerException {
        Object value = content.remove(name);
        if (value == null && otherwise != null) {
            return otherwise;
        }
        return whole(value, name, most);
    }

    int whole(Object value, String name, int most) throws TokenizerException {
        String text = value instanceof Literal literal ? literal.text() : "";
        if (!text.matches("[0-9]{1,10}") || Long.parseLong(text) > most) {
            throw refused("'" + name + "' is " + shown(value) + ", it must be a whole number from 0 to " + most + ".");
        }
        return Integer.parseInt(text);
    }

    List<?> list(String name) throws TokenizerException {
        Object value = content.remove(name);
        if (!(value instanceof List)) {
            throw refused("'" + name + "' is " + shown(value) + ", it must be a list.");
        }
        return (List<?>) value;
    }

    Fields object(String name) throws TokenizerException {
        return of(content.remove(name), where + "." + name);
    }

    Map<String, Object> rest() {
        return content;
    }

    void drop(String... names) {
        for (String name : names) {
            content.remove(name);
        }
    }

    /** Refuses the fields that were not taken. */
    void done() throws TokenizerException {
        if (!content.isEmpty()) {
            throw refused("'" + content.keySet().iterator().next() + "' is not known here; nothing of a tokenizer is left out silently.");
        }
    }

    static String shown(Object value) {
        String text = value instanceof Literal literal ? literal.text() : value instanceof String ? "'" + value + "'" : String.valueOf(value);
        return text.length() > 60 ? text.substring(0, 60) + "..." : text;
    }
}
