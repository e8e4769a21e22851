package android.system;

/** Stands in for Android's class of this name: the card's code sets an environment variable with it. */
public final class Os {
    private Os() {}

    /** What was set last, as {@code NAME=VALUE}. */
    public static String last = "";

    /** Notes what would be set. */
    public static void setenv(String name, String value, boolean overwrite) {
        last = name + "=" + value;
    }
}
