package android.content;

import android.content.res.AssetManager;
import java.nio.file.Path;

/** Stands in for Android's class of this name: an app whose assets are a folder. */
public final class Context {
    private final AssetManager assets;

    /** Makes an app that carries the files of a folder. */
    public Context(Path folder) {
        assets = new AssetManager(folder);
    }

    /** Returns the app's assets. */
    public AssetManager getAssets() {
        return assets;
    }
}
