package org.pocketbert.engines;

import java.io.BufferedReader;
import java.io.FileReader;
import java.io.IOException;

/** Reads the memory that this process holds, on Linux and Android. */
public final class ResidentMemory {
    private ResidentMemory() {}

    /** Returns resident memory (VmRSS) in bytes, or -1 where the system does not tell. */
    public static long bytes() {
        try (BufferedReader status = new BufferedReader(new FileReader("/proc/self/status"))) {
            for (String line = status.readLine(); line != null; line = status.readLine()) {
                if (line.startsWith("VmRSS:")) {
                    return Long.parseLong(line.replaceAll("[^0-9]", "")) * 1024;
                }
            }
        } catch (IOException | NumberFormatException e) {
            return -1; // No /proc, or a form that is not known: the figure is left out.
        }
        return -1;
    }
}
