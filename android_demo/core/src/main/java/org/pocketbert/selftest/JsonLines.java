package org.pocketbert.selftest;

import java.io.IOException;
import java.io.Reader;
import java.util.ArrayList;
import java.util.List;
import org.pocketbert.artefacts.ArtefactException;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.Fields;
import org.pocketbert.artefacts.StrictJson;
import org.pocketbert.artefacts.VerifiedStream;

/** Reads files with one JSON object a line, line by line and within bounds. */
final class JsonLines {
    /** Most rows of a file. */
    static final int MAX_ROWS = 4096;
    /** Most characters of a line. */
    static final int MAX_LINE = 4 << 20;

    private JsonLines() {}

    /** Makes a row of a JSON object. */
    interface Maker<T> {
        /** Returns the row, or null for one that is left out. */
        T make(Fields fields);
    }

    /**
     * Reads all rows.
     *
     * @param path path of a listed file
     * @param maker makes a row of each line
     * @throws ArtefactException if the file is missing, not the listed one, too long, or a line is wrong
     */
    static <T> List<T> read(Artefacts artefacts, String path, Maker<T> maker) throws ArtefactException {
        List<T> rows = new ArrayList<>();
        int number = 0;
        try (VerifiedStream bytes = artefacts.open(path);
                Reader text = Artefacts.text(bytes)) {
            for (String line = line(text); line != null; line = line(text)) {
                if (++number > MAX_ROWS) {
                    throw new IOException("more than " + MAX_ROWS + " rows");
                }
                T row = maker.make(Fields.of("", StrictJson.read(new java.io.StringReader(line))));
                if (row != null) {
                    rows.add(row);
                }
            }
            bytes.finish();
        } catch (VerifiedStream.Difference e) {
            throw e.problem();
        } catch (IOException | Fields.WrongField e) {
            throw Artefacts.malformed(path, "row " + number + " cannot be used: " + e.getMessage());
        }
        return rows;
    }

    /** Returns the next line that is not blank, or null at the end. */
    private static String line(Reader text) throws IOException {
        StringBuilder out = new StringBuilder();
        for (int next = text.read(); next >= 0; next = text.read()) {
            if (next != '\n') {
                out.append((char) next);
            } else if (out.toString().isBlank()) {
                out.setLength(0);
            } else {
                break;
            }
            if (out.length() > MAX_LINE) {
                throw new IOException("a line of more than " + MAX_LINE + " characters");
            }
        }
        return out.toString().isBlank() ? null : out.toString();
    }
}
