package org.pocketbert.artefacts;

import java.io.IOException;
import java.io.InputStream;

/** Opens the files of an artefact folder, wherever they are: a folder, a class path, the assets of an app. */
public interface Assets {
    /**
     * Opens a file.
     *
     * @param path path in the artefact folder with forward slashes, such as {@code onnx/model_int8.onnx}
     * @return the bytes of the file; the caller closes the stream
     * @throws java.io.FileNotFoundException if there is no such file
     * @throws IOException if it cannot be read
     */
    InputStream open(String path) throws IOException;
}
