package org.pocketbert.statistics;

import com.google.gson.stream.JsonWriter;
import java.io.IOException;
import java.io.Writer;
import java.util.List;
import java.util.Locale;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.engines.SessionFacts;

/**
 * Holds a benchmark on a phone, and writes the JSON that {@code pocketbert benchmark --import} reads.
 *
 * @param made when, in UTC, such as {@code 2026-11-23T08:00:00Z}
 * @param app version of the app
 * @param phone the phone
 * @param inputs where the texts came from, in words
 * @param runs timed inferences of each repeat that were asked for
 * @param repeats repeats that were asked for
 * @param tookSeconds how long it took
 * @param thermalBefore thermal status at the start, in the words of the phone; empty where it does not tell
 * @param thermalAfter thermal status at the end
 * @param power battery or charger, in words; empty where the phone does not tell
 * @param files what was measured, at least one entry
 */
public record BenchmarkRecord(
        String made,
        String app,
        Phone phone,
        String inputs,
        int runs,
        int repeats,
        double tookSeconds,
        String thermalBefore,
        String thermalAfter,
        String power,
        List<FileMeasurement> files) {
    /** Says that a file is such a record. */
    public static final String KIND = "pocketbert-android-benchmark";
    /** Version of the format; the major part must be the one that is read. */
    public static final String SCHEMA_VERSION = "1.0";

    /** Writes the record as JSON. */
    public void write(Writer target) throws IOException {
        JsonWriter json = new JsonWriter(target);
        json.setIndent(" ");
        json.setHtmlSafe(false);
        json.beginObject();
        json.name("kind").value(KIND).name("schema_version").value(SCHEMA_VERSION);
        json.name("made").value(made).name("app").value(app);
        json.name("phone");
        writePhone(json);
        json.name("protocol").beginObject();
        json.name("runs").value(runs).name("repeats").value(repeats).name("inputs").value(inputs);
        json.name("took_s").value(tookSeconds).endObject();
        json.name("thermal").beginObject();
        json.name("before").value(thermalBefore).name("after").value(thermalAfter).endObject();
        json.name("power").value(power);
        json.name("files").beginArray();
        for (FileMeasurement file : files) {
            writeFile(json, file);
        }
        json.endArray().endObject();
        json.flush();
    }

    private void writePhone(JsonWriter json) throws IOException {
        json.beginObject();
        json.name("maker").value(phone.maker()).name("model").value(phone.model()).name("soc").value(phone.soc());
        json.name("android").value(phone.android()).name("api").value(phone.api()).name("abi").value(phone.abi());
        json.name("cores").value(phone.cores()).name("memory_bytes").value(phone.memoryBytes());
        json.name("emulated").value(phone.emulated()).endObject();
    }

    private static void writeFile(JsonWriter json, FileMeasurement measured) throws IOException {
        ModelFile file = measured.file();
        SessionFacts facts = measured.facts();
        int space = facts.engine().lastIndexOf(' '); // the version is the last word
        json.beginObject();
        json.name("path").value(file.path()).name("sha256").value(file.file().sha256());
        json.name("bytes").value(file.file().bytes()).name("format").value(file.format());
        json.name("scheme").value(file.scheme());
        json.name("engine").value(space < 0 ? facts.engine() : facts.engine().substring(0, space));
        json.name("engine_version").value(space < 0 ? "" : facts.engine().substring(space + 1));
        json.name("processor").value(facts.processor().name().toLowerCase(Locale.ROOT)).name("threads").value(facts.threads());
        writeNumber(json, "load_ms", facts.loadMillis());
        writeNumber(json, "first_ms", facts.firstRunMillis());
        writeNumber(json, "memory_bytes", facts.memoryBytes() < 0 ? Double.NaN : facts.memoryBytes());
        json.name("answers").beginObject();
        json.name("rows").value(measured.report().rows()).name("largest").value(measured.report().largest());
        json.name("tolerance").value(measured.report().tolerance()).endObject();
        json.name("cells").beginArray();
        for (Cell cell : measured.cells()) {
            writeCell(json, cell);
        }
        json.endArray().name("sustained").beginArray();
        for (Sustained.Point point : measured.sustained()) {
            json.beginObject().name("after_s").value(point.afterSeconds()).name("p50_ms").value(point.medianMillis());
            json.name("thermal").value(point.thermal()).endObject();
        }
        json.endArray().endObject();
    }

    private static void writeCell(JsonWriter json, Cell cell) throws IOException {
        json.beginObject();
        json.name("length").value(cell.length()).name("warmup_runs").value(cell.warmupRuns());
        json.name("warmup_stable").value(cell.warmupStable()).name("wall_ms").beginArray();
        for (double[] repeat : cell.wallMillis()) {
            json.beginArray();
            for (double millis : repeat) {
                json.value(millis);
            }
            json.endArray();
        }
        json.endArray().endObject();
    }

    /** Writes a number, or null where it is not known. */
    private static void writeNumber(JsonWriter json, String name, double value) throws IOException {
        json.name(name);
        if (Double.isNaN(value)) {
            json.nullValue();
        } else if (value == Math.rint(value)) {
            json.value((long) value);
        } else {
            json.value(value);
        }
    }
}
