package org.pocketbert.artefacts;

import com.google.gson.JsonElement;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.Reader;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.pocketbert.artefacts.ArtefactException.Reason;

/**
 * Opens an artefact folder: the one that {@code pocketbert export} writes, or what {@code pocketbert pack --for android} makes of
 * it. Immutable; every file is compared with its listed digest while it is read.
 */
public final class Artefacts {
    /** Name of the list. */
    public static final String FILE_NAME = "artifacts.json";
    /** Major version of the list that is read. */
    public static final String SCHEMA_MAJOR = "1";
    /** Largest list that is read, in bytes. */
    public static final long MAX_LIST_BYTES = 16L << 20;

    private static final String AGAIN = "Pack the model again: pocketbert pack -m FOLDER -o ASSETS --for android.";

    private final Assets assets;
    private final FolderList list;

    private Artefacts(Assets assets, FolderList list) {
        this.assets = assets;
        this.list = list;
    }

    /**
     * Reads and checks the list of an artefact folder.
     *
     * @throws ArtefactException if it is missing, of another major schema, wrong, or names paths outside the folder
     */
    public static Artefacts read(Assets assets) throws ArtefactException {
        try (InputStream bytes = new BoundedStream(assets.open(FILE_NAME), MAX_LIST_BYTES)) {
            return new Artefacts(assets, FolderList.of(StrictJson.read(text(bytes))));
        } catch (FileNotFoundException e) {
            throw new ArtefactException(
                    Reason.MISSING_FILE, FILE_NAME, "is not there, so this is not an artefact folder.", AGAIN);
        } catch (BoundedStream.TooLarge e) {
            throw new ArtefactException(
                    Reason.TOO_LARGE, FILE_NAME, "is larger than the " + MAX_LIST_BYTES + " bytes that are read.", AGAIN);
        } catch (Fields.WrongField e) {
            throw new ArtefactException(Reason.MALFORMED, FILE_NAME, e.getMessage(), AGAIN);
        } catch (IOException e) {
            throw new ArtefactException(Reason.MALFORMED, FILE_NAME, "is not valid JSON: " + e.getMessage() + ".", AGAIN);
        }
    }

    /** Returns the name of the model. */
    public String name() {
        return list.name();
    }

    /** Returns what the model does. */
    public Task task() {
        return list.task();
    }

    /** Returns the heads in order of their outputs: the only one, without a name, or each of several. */
    public List<NamedHead> heads() {
        return list.heads();
    }

    /** Returns the names of the outputs in order of their ids, of several heads each with the head's name in front; empty for tasks without labels. */
    public List<String> labels() {
        return list.labels();
    }

    /** Returns whether the model was made for pairs of texts. */
    public boolean pair() {
        return list.pair() || list.task().pairsOnly();
    }

    /** Returns how texts become inputs and outputs become answers. */
    public Processing processing() {
        return list.processing();
    }

    /** Returns the model files, further names of the same file left out. */
    public List<ModelFile> models() {
        return list.models();
    }

    /** Returns the default model file. */
    public ModelFile standard() {
        for (ModelFile model : list.models()) {
            if (model.standard()) {
                return model;
            }
        }
        return list.models().get(0);
    }

    /**
     * Returns a listed file.
     *
     * @throws ArtefactException if the list has no such file
     */
    public FileEntry file(String path) throws ArtefactException {
        FileEntry entry = list.files().get(path);
        if (entry == null) {
            throw new ArtefactException(Reason.MISSING_FILE, path, "is not in the list of the folder.", AGAIN);
        }
        return entry;
    }

    /** Returns whether a file is listed. */
    public boolean has(String path) {
        return list.files().containsKey(path);
    }

    /**
     * Opens a listed file; its bytes are compared with the list while they are read.
     *
     * @return a stream that fails with {@link VerifiedStream.Difference} where the file is not the listed one
     * @throws ArtefactException if the file is not listed or not there
     */
    public VerifiedStream open(String path) throws ArtefactException {
        FileEntry entry = file(path);
        try {
            return new VerifiedStream(assets.open(path), entry);
        } catch (FileNotFoundException e) {
            throw new ArtefactException(Reason.MISSING_FILE, path, "is listed, but not there.", AGAIN);
        } catch (IOException e) {
            throw unreadable(path, e);
        }
    }

    /**
     * Compares a listed file with its digest, without keeping its bytes: before an engine maps it into memory.
     *
     * @throws ArtefactException if it is missing or not the listed one
     */
    public void verify(String path) throws ArtefactException {
        try (VerifiedStream stream = open(path)) {
            stream.finish();
        } catch (VerifiedStream.Difference e) {
            throw e.problem();
        } catch (IOException e) {
            throw unreadable(path, e);
        }
    }

    /**
     * Reads a listed file.
     *
     * @param most largest file that is read, in bytes
     * @throws ArtefactException if it is missing, larger, or not the listed one
     */
    public byte[] bytes(String path, long most) throws ArtefactException {
        FileEntry entry = file(path);
        if (entry.bytes() > Math.min(most, Integer.MAX_VALUE - 8)) {
            throw new ArtefactException(
                    Reason.TOO_LARGE, path, "has " + entry.bytes() + " bytes; at most " + most + " are read.", AGAIN);
        }
        ByteArrayOutputStream out = new ByteArrayOutputStream((int) entry.bytes());
        try (VerifiedStream stream = open(path)) {
            byte[] buffer = new byte[1 << 16];
            for (int read = stream.read(buffer); read >= 0; read = stream.read(buffer)) {
                out.write(buffer, 0, read);
            }
        } catch (VerifiedStream.Difference e) {
            throw e.problem();
        } catch (IOException e) {
            throw unreadable(path, e);
        }
        return out.toByteArray();
    }

    /**
     * Reads a listed JSON file.
     *
     * @param most largest file that is read, in bytes
     * @throws ArtefactException if it is missing, larger, not the listed one, or not JSON
     */
    public JsonElement json(String path, long most) throws ArtefactException {
        byte[] bytes = bytes(path, most);
        try {
            return StrictJson.read(text(new java.io.ByteArrayInputStream(bytes)));
        } catch (IOException e) {
            throw new ArtefactException(Reason.MALFORMED, path, "is not valid JSON: " + e.getMessage() + ".", AGAIN);
        }
    }

    /**
     * Says that a file holds something that cannot be used.
     *
     * @param what what is wrong, one sentence
     */
    public static ArtefactException malformed(String path, String what) {
        return new ArtefactException(Reason.MALFORMED, path, what, AGAIN);
    }

    /** Returns the characters of UTF-8 bytes; bytes that are not UTF-8 are an error and not replaced. */
    public static Reader text(InputStream bytes) {
        return new BufferedReader(new InputStreamReader(
                bytes,
                StandardCharsets.UTF_8
                        .newDecoder()
                        .onMalformedInput(CodingErrorAction.REPORT)
                        .onUnmappableCharacter(CodingErrorAction.REPORT)));
    }

    private static ArtefactException unreadable(String path, IOException e) {
        return new ArtefactException(
                Reason.UNREADABLE, path, "cannot be read: " + e.getMessage() + ".", "Start the app again, or install it again.");
    }
}
