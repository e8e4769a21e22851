package android.content.res;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;

/** Stands in for Android's class of this name: assets that lie in a folder. */
public final class AssetManager {
    private final Path folder;

    /** Opens the files of a folder. */
    public AssetManager(Path folder) {
        this.folder = folder;
    }

    /** Opens a file as a stream. */
    public InputStream open(String name) throws IOException {
        return Files.newInputStream(folder.resolve(name));
    }

    /** Opens a file that was not compressed. */
    public AssetFileDescriptor openFd(String name) throws IOException {
        return new AssetFileDescriptor(folder.resolve(name));
    }
}
