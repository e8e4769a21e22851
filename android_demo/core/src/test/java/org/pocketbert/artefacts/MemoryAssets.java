package org.pocketbert.artefacts;

import java.io.ByteArrayInputStream;
import java.io.FileNotFoundException;
import java.io.InputStream;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A small artefact folder in memory, that tests break. */
public final class MemoryAssets implements Assets {
    /** The files by path. */
    public final Map<String, byte[]> files = new LinkedHashMap<>();

    @Override
    public InputStream open(String path) throws FileNotFoundException {
        if (!files.containsKey(path)) {
            throw new FileNotFoundException(path);
        }
        return new ByteArrayInputStream(files.get(path));
    }

    /** Adds a file. */
    public MemoryAssets put(String path, String content) {
        files.put(path, content.getBytes(StandardCharsets.UTF_8));
        return this;
    }

    /** A folder of a classifier with two labels whose list is right. */
    public static MemoryAssets classifier() {
        MemoryAssets assets = new MemoryAssets();
        assets.put("config.json", "{\"pad_token_id\": 3, \"vocab_size\": 9, \"id2label\": {\"0\": \"no\", \"1\": \"yes\"}}");
        assets.put("onnx/model.onnx", "weights");
        return assets.put(Artefacts.FILE_NAME, assets.list());
    }

    /** The right list of the files that are there. */
    public String list() {
        List<String> records = new ArrayList<>();
        for (String path : files.keySet()) {
            if (!path.equals(Artefacts.FILE_NAME)) {
                records.add(record(path));
            }
        }
        return "{\"schema_version\": \"1.3\", \"name\": \"tiny\", \"task\": \"text-classification\", \"family\": \"bert\","
                + " \"labels\": [\"no\", \"yes\"], \"processing\": {\"max_length\": 16, \"score\": \"softmax\"},"
                + " \"unknown\": {\"key\": [1, null, true]}, \"files\": [" + String.join(", ", records) + "]}";
    }

    /** The record of one file. */
    public String record(String path) {
        String kind = path.endsWith(".onnx")
                ? "\"model\", \"format\": \"onnx\", \"scheme\": \"fp32\", \"status\": \"passed\""
                : "\"config\"";
        return "{\"path\": \"" + path + "\", \"sha256\": \"" + sha256(files.get(path)) + "\", \"bytes\": "
                + files.get(path).length + ", \"kind\": " + kind + "}";
    }

    private static String sha256(byte[] bytes) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
            return String.format("%064x", new BigInteger(1, digest));
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }
}
