package org.pocketbert.artefacts;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import com.google.gson.Strictness;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import java.io.IOException;
import java.io.Reader;

/**
 * Reads JSON from files that nobody has checked: strict syntax, no key twice, a bounded number of values.
 *
 * <p>gson's own tree parser takes the last of two equal keys and any number of values.
 */
public final class StrictJson {
    /** Most values of one text: the list of a folder with the most labels has fewer. */
    public static final int MAX_VALUES = 2_000_000;

    private int left = MAX_VALUES;

    private StrictJson() {}

    /**
     * Reads one value, which must be all of the text.
     *
     * @throws IOException if the text is not JSON, has a key twice or too many values; the message says where
     */
    public static JsonElement read(Reader text) throws IOException {
        JsonReader reader = new JsonReader(text);
        reader.setStrictness(Strictness.STRICT);
        try {
            JsonElement value = new StrictJson().value(reader);
            if (reader.peek() != JsonToken.END_DOCUMENT) {
                throw new IOException("more than one value");
            }
            return value;
        } catch (IllegalStateException | NumberFormatException e) {
            throw new IOException(e.getMessage(), e);
        }
    }

    private JsonElement value(JsonReader reader) throws IOException {
        if (--left < 0) {
            throw new IOException("more than " + MAX_VALUES + " values");
        }
        switch (reader.peek()) {
            case BEGIN_OBJECT:
                return object(reader);
            case BEGIN_ARRAY:
                return array(reader);
            case STRING:
                return new JsonPrimitive(reader.nextString());
            case NUMBER:
                return new JsonPrimitive(Double.valueOf(reader.nextString()));
            case BOOLEAN:
                return new JsonPrimitive(reader.nextBoolean());
            case NULL:
                reader.nextNull();
                return JsonNull.INSTANCE;
            default:
                throw new IOException("a value is missing at " + reader.getPath());
        }
    }

    private JsonObject object(JsonReader reader) throws IOException {
        JsonObject out = new JsonObject();
        reader.beginObject();
        while (reader.hasNext()) {
            String key = reader.nextName();
            if (out.has(key)) {
                throw new IOException("the key '" + key + "' is there twice");
            }
            out.add(key, value(reader));
        }
        reader.endObject();
        return out;
    }

    private JsonArray array(JsonReader reader) throws IOException {
        JsonArray out = new JsonArray();
        reader.beginArray();
        while (reader.hasNext()) {
            out.add(value(reader));
        }
        reader.endArray();
        return out;
    }
}
