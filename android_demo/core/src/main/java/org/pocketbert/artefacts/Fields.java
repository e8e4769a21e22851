package org.pocketbert.artefacts;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;

/** Reads typed values of a JSON object within bounds, and names the key that is wrong. */
public final class Fields {
    private static final int MAX_TEXT = 1 << 20;

    private final String where;
    private final JsonObject object;

    private Fields(String where, JsonObject object) {
        this.where = where;
        this.object = object;
    }

    /** Says that a value is missing, of another type or out of bounds. */
    public static final class WrongField extends RuntimeException {
        private static final long serialVersionUID = 1;

        /** Creates an exception with a sentence that names the key. */
        public WrongField(String message) {
            super(message);
        }
    }

    /**
     * Wraps a JSON value that must be an object.
     *
     * @param where its place in the file, for messages; empty for the whole file
     */
    public static Fields of(String where, JsonElement value) {
        if (value == null || !value.isJsonObject()) {
            throw new WrongField((where.isEmpty() ? "the content" : where) + " is not an object.");
        }
        return new Fields(where, value.getAsJsonObject());
    }

    /** Returns whether a key is there and not null. */
    public boolean has(String key) {
        return object.has(key) && !object.get(key).isJsonNull();
    }

    /** Returns the names of the keys. */
    public List<String> keys() {
        return new ArrayList<>(object.keySet());
    }

    /** Returns an object under a key. */
    public Fields fields(String key) {
        return of(place(key), object.get(key));
    }

    /** Returns a text of 1 to 1,048,576 characters. */
    public String text(String key) {
        String text = asText(key, object.get(key));
        if (text.isEmpty()) {
            throw new WrongField(place(key) + " is empty; it has at least one character.");
        }
        return text;
    }

    /** Returns a text that may be empty, of at most 1,048,576 characters. */
    public String anyText(String key) {
        return asText(key, object.get(key));
    }

    /** Returns a finite number within bounds, both included. */
    public double number(String key, double least, double most) {
        double value = number(key, object.get(key));
        if (value < least || value > most) {
            throw new WrongField(place(key) + " is " + value + "; allowed: " + least + " to " + most + ".");
        }
        return value;
    }

    /** Returns a text, or a default where the key is not there. */
    public String text(String key, String otherwise) {
        return has(key) ? text(key) : otherwise;
    }

    /** Returns true or false, or a default where the key is not there. */
    public boolean flag(String key, boolean otherwise) {
        if (!has(key)) {
            return otherwise;
        }
        JsonElement value = object.get(key);
        if (!value.isJsonPrimitive() || !value.getAsJsonPrimitive().isBoolean()) {
            throw new WrongField(place(key) + " is neither true nor false.");
        }
        return value.getAsBoolean();
    }

    /** Returns a whole number within bounds, both included. */
    public long whole(String key, long least, long most) {
        double value = number(key, object.get(key));
        if (value != Math.rint(value) || value < least || value > most) {
            throw new WrongField(
                    place(key) + " is " + object.get(key) + "; allowed: whole numbers from " + least + " to " + most + ".");
        }
        return (long) value;
    }

    /** Returns finite numbers of a list; empty where the key is not there. */
    public double[] numbers(String key) {
        List<Double> found = list(key, value -> number(key, value));
        double[] out = new double[found.size()];
        for (int i = 0; i < out.length; i++) {
            out[i] = found.get(i);
        }
        return out;
    }

    /** Returns finite numbers of a list as 32-bit floats; empty where the key is not there. */
    public float[] floats(String key) {
        double[] found = numbers(key);
        float[] out = new float[found.length];
        for (int i = 0; i < out.length; i++) {
            out[i] = (float) found[i];
        }
        return out;
    }

    /** Returns whole numbers of a list within bounds, both included; empty where the key is not there. */
    public int[] wholes(String key, int least, int most) {
        double[] found = numbers(key);
        int[] out = new int[found.length];
        for (int i = 0; i < out.length; i++) {
            if (found[i] != Math.rint(found[i]) || found[i] < least || found[i] > most) {
                throw new WrongField(
                        place(key) + " has " + found[i] + "; allowed: whole numbers from " + least + " to " + most + ".");
            }
            out[i] = (int) found[i];
        }
        return out;
    }

    /** Returns texts of a list; empty where the key is not there. */
    public List<String> texts(String key) {
        return list(key, value -> asText(key, value));
    }

    /** Returns objects of a list; empty where the key is not there. */
    public List<Fields> objects(String key) {
        return list(key, value -> of(place(key), value));
    }

    /** Returns whether the value under a key is a list. */
    public boolean isList(String key) {
        return has(key) && object.get(key).isJsonArray();
    }

    private <T> List<T> list(String key, Function<JsonElement, T> read) {
        if (!has(key)) {
            return List.of();
        }
        if (!object.get(key).isJsonArray()) {
            throw new WrongField(place(key) + " is not a list.");
        }
        JsonArray values = object.get(key).getAsJsonArray();
        List<T> out = new ArrayList<>(values.size());
        for (JsonElement value : values) {
            out.add(read.apply(value));
        }
        return out;
    }

    private String asText(String key, JsonElement value) {
        if (value == null || !value.isJsonPrimitive() || !value.getAsJsonPrimitive().isString()) {
            throw new WrongField(place(key) + (value == null ? " is missing." : " is not a text."));
        }
        String text = value.getAsString();
        if (text.length() > MAX_TEXT) {
            throw new WrongField(place(key) + " has " + text.length() + " characters; at most " + MAX_TEXT + " are read.");
        }
        return text;
    }

    private double number(String key, JsonElement value) {
        if (value == null || !value.isJsonPrimitive() || !value.getAsJsonPrimitive().isNumber()) {
            throw new WrongField(place(key) + (value == null ? " is missing." : " is not a number."));
        }
        double number = value.getAsDouble();
        if (Double.isNaN(number) || Double.isInfinite(number)) {
            throw new WrongField(place(key) + " is " + number + ", not a finite number.");
        }
        return number;
    }

    private String place(String key) {
        return where.isEmpty() ? key : where + "." + key;
    }
}
