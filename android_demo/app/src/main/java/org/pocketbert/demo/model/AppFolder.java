package org.pocketbert.demo.model;

import android.content.Context;
import android.content.res.AssetFileDescriptor;
import android.content.res.AssetManager;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import org.pocketbert.artefacts.Assets;
import org.pocketbert.artefacts.FileEntry;
import org.pocketbert.engines.ModelSource;

/**
 * Opens the artefact folder of the app: its assets, or the folder {@code phone} in the app's external files where there is one.
 *
 * <p>{@code adb push phone /sdcard/Android/data/org.pocketbert.demo/files/} tries another model without building the app again.
 */
public final class AppFolder implements Assets {
    /** Name of the folder in the app's external files. */
    public static final String PUSHED = "phone";

    private final AssetManager assets;
    private final File pushed;

    private AppFolder(AssetManager assets, File pushed) {
        this.assets = assets;
        this.pushed = pushed;
    }

    /** Returns the folder that the app opens. */
    public static AppFolder of(Context context) {
        File files = context.getExternalFilesDir(null); // Null while the storage is not mounted.
        File pushed = files == null ? null : new File(files, PUSHED);
        return new AppFolder(context.getAssets(), pushed != null && pushed.isDirectory() ? pushed : null);
    }

    @Override
    public InputStream open(String path) throws IOException {
        return pushed == null ? assets.open(path) : new FileInputStream(new File(pushed, path));
    }

    /** Returns a model file as engines read it: mapped into memory, or copied where the packer compressed it. */
    public ModelSource source(FileEntry entry) throws IOException {
        return new ModelSource(entry.path(), entry.sha256(), pushed == null ? mapAsset(entry) : mapFile(entry));
    }

    private ByteBuffer mapFile(FileEntry entry) throws IOException {
        try (FileInputStream stream = new FileInputStream(new File(pushed, entry.path()))) {
            return stream.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, stream.getChannel().size());
        }
    }

    private ByteBuffer mapAsset(FileEntry entry) throws IOException {
        try (AssetFileDescriptor place = assets.openFd(entry.path());
                FileInputStream stream = place.createInputStream()) {
            return stream.getChannel().map(FileChannel.MapMode.READ_ONLY, place.getStartOffset(), place.getDeclaredLength());
        } catch (FileNotFoundException e) {
            return copyOfAsset(entry); // A compressed asset cannot be mapped; a missing one fails again here.
        }
    }

    private ByteBuffer copyOfAsset(FileEntry entry) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (InputStream stream = assets.open(entry.path())) {
            byte[] buffer = new byte[1 << 16];
            for (int count = stream.read(buffer); count >= 0; count = stream.read(buffer)) {
                bytes.write(buffer, 0, count);
            }
        }
        return ModelSource.copyOf(entry.path(), entry.sha256(), bytes.toByteArray()).content();
    }
}
