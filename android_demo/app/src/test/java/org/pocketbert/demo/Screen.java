package org.pocketbert.demo;

import android.app.Activity;
import android.widget.EditText;
import android.widget.LinearLayout;
import android.widget.TextView;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.stream.Stream;
import org.pocketbert.demo.model.AppFolder;
import org.pocketbert.testing.Shim;
import org.robolectric.Robolectric;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.android.controller.ActivityController;

/** Drives the main screen of a test. */
final class Screen implements AutoCloseable {
    private final ActivityController<MainActivity> controller = Robolectric.buildActivity(MainActivity.class);

    /** Copies an artefact folder to where `adb push` puts it; the app opens it in place of its assets. */
    static Path push(Path folder) throws IOException {
        File files = RuntimeEnvironment.getApplication().getExternalFilesDir(null);
        Path pushed = files.toPath().resolve(AppFolder.PUSHED);
        try (Stream<Path> paths = Files.walk(folder)) {
            for (Path path : (Iterable<Path>) paths::iterator) {
                Path to = pushed.resolve(folder.relativize(path).toString());
                if (Files.isDirectory(path)) {
                    Files.createDirectories(to);
                } else {
                    Files.copy(path, to, StandardCopyOption.REPLACE_EXISTING);
                }
            }
        }
        return pushed;
    }

    /** Opens the screen and waits until the model is open or a message says why not. */
    Screen open() throws InterruptedException {
        Shim.loadIfThere(); // Before TFLite's class is loaded, which tries only once.
        controller.setup();
        settle();
        return this;
    }

    /** Waits until the model is open or a message says why not. */
    void settle() throws InterruptedException {
        Screens.until("opened", () -> activity().findViewById(R.id.benchmark).isEnabled() || !message().isEmpty());
    }

    /** Types into the first field and waits for an answer or a message. */
    void type(String words) throws InterruptedException {
        activity().<EditText>findViewById(R.id.first).setText(words);
        answered();
    }

    /** Waits for an answer or a message. */
    void answered() throws InterruptedException {
        Screens.until("answered", () -> result().getChildCount() > 0 || !message().isEmpty());
    }

    Activity activity() {
        return controller.get();
    }

    ActivityController<MainActivity> controller() {
        return controller;
    }

    String text(int id) {
        return activity().<TextView>findViewById(id).getText().toString();
    }

    String message() {
        return text(R.id.message);
    }

    LinearLayout result() {
        return activity().findViewById(R.id.result);
    }

    @Override
    public void close() {
        controller.destroy();
    }
}
