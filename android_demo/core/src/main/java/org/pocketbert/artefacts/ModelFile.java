package org.pocketbert.artefacts;

import java.util.List;

/**
 * Describes a model file as {@code artifacts.json} lists it.
 *
 * @param file path, digest and size
 * @param format what opens it: {@code onnx} or {@code tflite}
 * @param scheme how its numbers are stored, such as {@code int8}
 * @param standard whether it is the folder's default file
 * @param runtime the one runtime that it is made for, such as {@code tflite216}; empty where any of its format may open it
 * @param client the one client that it is made for, such as {@code mediapipe}; empty where any may open it
 * @param inputs names of the inputs in their order
 * @param outputs names of the outputs in their order
 * @param temperature what its logits are divided by before the softmax (text-classification); 1 for none
 * @param unknown probability, after the temperature, below which an answer of this file is unknown (text-classification); 0
 *     where the file has no threshold of its own
 * @param lengths the only lengths in tokens that it takes, ascending; empty where every length is taken
 */
public record ModelFile(
        FileEntry file,
        String format,
        String scheme,
        boolean standard,
        String runtime,
        String client,
        List<String> inputs,
        List<String> outputs,
        double temperature,
        double unknown,
        List<Integer> lengths) {
    /** Returns the path in the artefact folder. */
    public String path() {
        return file.path();
    }

    /**
     * Returns whether an engine may open the file with right answers.
     *
     * @param formats formats that the engine opens
     * @param runtimes names of runtimes whose own files it computes right
     */
    public boolean isFor(List<String> formats, List<String> runtimes) {
        return client.isEmpty() && formats.contains(format) && (runtime.isEmpty() || runtimes.contains(runtime));
    }
}
