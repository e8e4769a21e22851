package android.content.res;

import java.io.Closeable;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.IOException;
import java.nio.file.Path;

/** Stands in for Android's class of this name: a whole file. */
public final class AssetFileDescriptor implements Closeable {
    private final FileInputStream file;

    /** Opens a file. */
    public AssetFileDescriptor(Path path) throws IOException {
        file = new FileInputStream(path.toFile());
    }

    /** Returns the open file. */
    public FileDescriptor getFileDescriptor() throws IOException {
        return file.getFD();
    }

    /** Returns where the asset begins. */
    public long getStartOffset() {
        return 0;
    }

    /** Returns the asset's size in bytes. */
    public long getDeclaredLength() throws IOException {
        return file.getChannel().size();
    }

    @Override
    public void close() throws IOException {
        file.close();
    }
}
