package org.pocketbert.engines;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Gives the bytes of a model file to an engine.
 *
 * @param name path in the artefact folder, such as {@code onnx/model_int8.onnx}; used in messages
 * @param sha256 digest of the file in lower-case hexadecimal; names the engine's cache of this file
 * @param content the whole file in a direct buffer, mapped from the file where the system can do that
 */
public record ModelSource(String name, String sha256, ByteBuffer content) {
    /** Refuses a buffer on the Java heap, which native engines cannot read. */
    public ModelSource {
        if (!content.isDirect()) {
            throw new IllegalArgumentException(
                    name + " lies in a heap buffer; engines read direct buffers: use ModelSource.copyOf(name, sha256, bytes).");
        }
    }

    /** Copies bytes into a direct buffer, for files that cannot be mapped. */
    public static ModelSource copyOf(String name, String sha256, byte[] bytes) {
        ByteBuffer direct = ByteBuffer.allocateDirect(bytes.length).order(ByteOrder.nativeOrder());
        direct.put(bytes);
        direct.rewind();
        return new ModelSource(name, sha256, direct);
    }
}
