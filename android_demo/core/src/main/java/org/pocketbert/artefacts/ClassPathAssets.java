package org.pocketbert.artefacts;

import java.io.FileNotFoundException;
import java.io.InputStream;

/** Opens files of a folder on the class path. */
public final class ClassPathAssets implements Assets {
    private final ClassLoader loader;
    private final String root;

    /**
     * Creates a reader of an artefact folder.
     *
     * @param loader where the class path is
     * @param root path of the artefact folder on it, such as {@code org/example/model}
     */
    public ClassPathAssets(ClassLoader loader, String root) {
        this.loader = loader;
        this.root = root.isEmpty() || root.endsWith("/") ? root : root + "/";
    }

    @Override
    public InputStream open(String path) throws FileNotFoundException {
        InputStream found = loader.getResourceAsStream(root + path);
        if (found == null) {
            throw new FileNotFoundException(root + path);
        }
        return found;
    }
}
