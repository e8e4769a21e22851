package org.pocketbert.artefacts;

import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;

/** Opens files of a folder on a disk. */
public final class FolderAssets implements Assets {
    private final File folder;

    /** Creates a reader of an artefact folder. */
    public FolderAssets(File folder) {
        this.folder = folder;
    }

    @Override
    public InputStream open(String path) throws IOException {
        return new FileInputStream(new File(folder, path));
    }
}
