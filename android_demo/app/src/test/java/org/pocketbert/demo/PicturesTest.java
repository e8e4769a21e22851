package org.pocketbert.demo;

import android.content.Intent;
import android.widget.EditText;
import com.google.gson.JsonObject;
import java.util.List;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.pocketbert.testing.Fixtures;
import org.pocketbert.testing.Shim;
import org.robolectric.Robolectric;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.android.controller.ActivityController;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;

/** Draws the screens into android_demo/target/pictures; README.md shows copies of them. */
@RunWith(RobolectricTestRunner.class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(qualifiers = "w360dp-h640dp-xhdpi")
public class PicturesTest {
    static {
        Shim.loadIfThere(); // Before TFLite's class is loaded, which tries only once.
    }

    private static final String TEXT = "The film was far better than I had expected.";

    @Test
    public void classification() throws Exception {
        try (Screen screen = new Screen().open()) {
            screen.type(TEXT);
            Screens.draw(screen.activity(), "classification");
        }
    }

    @Test
    @Config(qualifiers = "w360dp-h640dp-night-xhdpi")
    public void dark() throws Exception {
        Screen.push(Fixtures.phone("token-classification"));
        List<JsonObject> rows = Fixtures.lines(Fixtures.path("phones/token-classification.app_answers.jsonl"));
        try (Screen screen = new Screen().open()) {
            screen.type(rows.get(0).get("text").getAsString());
            Screens.draw(screen.activity(), "spans_dark");
        }
    }

    @Test
    @Config(qualifiers = "de-w360dp-h640dp-xhdpi", fontScale = 2f)
    public void germanWithLargeFonts() throws Exception {
        try (Screen screen = new Screen().open()) {
            screen.type(TEXT);
            Screens.draw(screen.activity(), "large_fonts_german");
        }
    }

    @Test
    public void answer() throws Exception {
        Screen.push(Fixtures.phone("question-answering"));
        try (Screen screen = new Screen().open()) {
            screen.activity().<EditText>findViewById(R.id.second)
                    .setText("No, said she. It was a poor morning, and then 12 lazy dogs turned the light down.");
            screen.type("will it be a great day?");
            Screens.draw(screen.activity(), "answer");
        }
    }

    @Test
    public void heads() throws Exception {
        Screen.push(Fixtures.phone("several"));
        List<JsonObject> rows = Fixtures.lines(Fixtures.path("phones/several.app_answers.jsonl"));
        try (Screen screen = new Screen().open()) {
            screen.type(rows.get(0).get("text").getAsString());
            Screens.draw(screen.activity(), "several_heads");
        }
    }

    @Test
    public void benchmark() throws Exception {
        Intent intent = new Intent().putExtra("model", "onnx/model_int8.onnx").putExtra("runs", 100).putExtra("seconds", 2)
                .putExtra("stay", true);
        ActivityController<BenchmarkActivity> controller =
                Robolectric.buildActivity(BenchmarkActivity.class, intent).setup();
        Screens.until("measured", () -> controller.get().findViewById(R.id.share).isEnabled());
        Screens.draw(controller.get(), "benchmark");
        controller.destroy();
    }
}
