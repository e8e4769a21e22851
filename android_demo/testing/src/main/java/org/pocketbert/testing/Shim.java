package org.pocketbert.testing;

import java.io.File;
import org.junit.Assume;

/**
 * Loads libraries that stand in for Android's C library, so that the native code of the TFLite AAR runs on a desktop.
 *
 * <p>{@code shim/build.sh} builds them; tests are skipped where it could not: on other systems than x86-64 Linux, or without gcc.
 */
public final class Shim {
    private static final String[] LIBRARIES = {"libshim.so", "libc.so", "libm.so", "libdl.so", "liblog.so"};

    private Shim() {}

    /** Loads the libraries, or skips the test that calls. */
    public static void loadOrSkip() {
        Assume.assumeTrue(
                "skipped: no libraries that stand in for Android's C library in '" + folder() + "' (see shim/build.sh)",
                loadIfThere());
    }

    /** Loads the libraries where they were built, and returns whether they were. */
    public static synchronized boolean loadIfThere() {
        if (!new File(folder(), LIBRARIES[0]).isFile()) {
            return false;
        }
        for (String name : LIBRARIES) {
            System.load(new File(folder(), name).getAbsolutePath()); // A library that is loaded already is left as it is.
        }
        return true;
    }

    private static File folder() {
        return new File(System.getProperty("pocketbert.shim", ""));
    }
}
