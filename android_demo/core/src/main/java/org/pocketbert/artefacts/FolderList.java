package org.pocketbert.artefacts;

import com.google.gson.JsonElement;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Holds the content of {@code artifacts.json}; keys that are not known here are ignored, so that newer lists of the same major
 * schema are read.
 */
record FolderList(
        String name,
        Task task,
        List<String> labels,
        List<NamedHead> heads,
        boolean pair,
        Processing processing,
        Map<String, FileEntry> files,
        List<ModelFile> models) {
    private static final int MAX_LABELS = 1 << 16;
    private static final int MAX_FILES = 10_000;
    private static final int MAX_LENGTH = 1 << 20;
    private static final double MAX_TEMPERATURE = 100;

    static FolderList of(JsonElement content) throws ArtefactException {
        Fields fields = Fields.of("", content);
        checkSchema(fields.text("schema_version", ""));
        Task task = Task.named(fields.text("task"));
        if (task == null) {
            throw new Fields.WrongField("task '" + fields.text("task") + "' is not known to this app.");
        }
        List<String> labels = List.copyOf(fields.texts("labels"));
        checkLabels(task, labels);
        Processing processing = Processing.of(fields.fields("processing"), task, labels.size());
        List<NamedHead> heads = task == Task.SEVERAL
                ? NamedHead.several(fields.fields("heads"), labels)
                : List.of(NamedHead.only(task, labels, processing.score(), processing.thresholds()));
        Map<String, FileEntry> files = new LinkedHashMap<>();
        List<ModelFile> models = new ArrayList<>();
        List<Fields> records = fields.objects("files");
        if (records.size() > MAX_FILES) {
            throw new Fields.WrongField("files has " + records.size() + " entries; at most " + MAX_FILES + " are read.");
        }
        for (Fields record : records) {
            FileEntry entry = entry(record);
            if (files.put(entry.path(), entry) != null) {
                throw new Fields.WrongField("'" + entry.path() + "' is listed twice.");
            }
            boolean usable = !record.has("alias_of") && !record.text("status", "passed").equals("failed");
            if (entry.kind().equals("model") && usable) {
                models.add(model(entry, record));
            }
        }
        if (models.isEmpty()) {
            throw new Fields.WrongField("no model file is listed.");
        }
        return new FolderList(
                fields.text("name"),
                task,
                labels,
                heads,
                fields.flag("pair", false),
                processing,
                Collections.unmodifiableMap(files),
                List.copyOf(models));
    }

    private static void checkSchema(String version) throws ArtefactException {
        String major = version.contains(".") ? version.substring(0, version.indexOf('.')) : version;
        if (!major.equals(Artefacts.SCHEMA_MAJOR)) {
            String shown = version.length() > 20 ? version.substring(0, 20) : version;
            throw new ArtefactException(
                    ArtefactException.Reason.UNKNOWN_SCHEMA,
                    Artefacts.FILE_NAME,
                    "has schema version '" + shown + "'; this app reads version " + Artefacts.SCHEMA_MAJOR + ".",
                    "Update the app, or pack the model with the PocketBERT that this app was made for.");
        }
    }

    private static void checkLabels(Task task, List<String> labels) {
        if (labels.size() > MAX_LABELS) {
            throw new Fields.WrongField("labels has " + labels.size() + " names; at most " + MAX_LABELS + " are read.");
        }
        if (new HashSet<>(labels).size() < labels.size()) {
            throw new Fields.WrongField("labels has a name twice.");
        }
        if (task.namesLabels() == labels.isEmpty()) {
            throw new Fields.WrongField(
                    "labels has " + labels.size() + " names; " + task.hubName() + (labels.isEmpty() ? " has some." : " has none."));
        }
    }

    private static FileEntry entry(Fields record) {
        String path = record.text("path");
        if (!isInside(path)) {
            throw new Fields.WrongField("the path '" + path + "' leaves the folder.");
        }
        String sha256 = record.text("sha256");
        if (!sha256.matches("[0-9a-f]{64}")) {
            throw new Fields.WrongField("sha256 of '" + path + "' is not 64 hexadecimal digits.");
        }
        return new FileEntry(path, sha256, record.whole("bytes", 0, 1L << 53), record.text("kind"));
    }

    /** Tells whether a path stays in the folder: relative, with forward slashes, without dots as names. */
    private static boolean isInside(String path) {
        if (path.indexOf('\\') >= 0 || path.indexOf('\0') >= 0) {
            return false;
        }
        for (String part : path.split("/", -1)) {
            if (part.isEmpty() || part.equals(".") || part.equals("..")) {
                return false;
            }
        }
        return true;
    }

    private static ModelFile model(FileEntry entry, Fields record) {
        List<String> inputs = List.of();
        List<String> outputs = List.of();
        List<Integer> lengths = new ArrayList<>();
        if (record.has("signature")) {
            Fields signature = record.fields("signature");
            inputs = names(signature.objects("inputs"));
            outputs = names(signature.objects("outputs"));
            for (int length : signature.wholes("lengths", 1, MAX_LENGTH)) {
                lengths.add(length);
            }
            Collections.sort(lengths);
        }
        return new ModelFile(
                entry,
                record.text("format"),
                record.text("scheme"),
                record.flag("default", false),
                record.text("runtime", ""),
                record.text("client", ""),
                inputs,
                outputs,
                record.has("confidence") ? temperature(record.fields("confidence")) : 1,
                record.has("confidence") ? unknown(record.fields("confidence")) : 0,
                List.copyOf(lengths));
    }

    private static double temperature(Fields confidence) {
        return confidence.has("temperature") ? confidence.number("temperature", Double.MIN_VALUE, MAX_TEMPERATURE) : 1;
    }

    private static double unknown(Fields confidence) {
        return confidence.has("unknown") ? confidence.number("unknown", 0, 1) : 0;
    }

    private static List<String> names(List<Fields> tensors) {
        List<String> out = new ArrayList<>();
        for (Fields tensor : tensors) {
            out.add(tensor.text("name"));
        }
        return List.copyOf(out);
    }
}
