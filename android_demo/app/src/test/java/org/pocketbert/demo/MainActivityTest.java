package org.pocketbert.demo;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import android.widget.EditText;
import android.widget.LinearLayout;
import android.widget.TextView;
import com.google.gson.JsonObject;
import org.junit.After;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.pocketbert.testing.Fixtures;
import org.robolectric.Robolectric;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.android.controller.ActivityController;

@RunWith(RobolectricTestRunner.class)
public class MainActivityTest {
    private final ActivityController<MainActivity> controller = Robolectric.buildActivity(MainActivity.class);

    @After
    public void end() {
        controller.destroy();
    }

    private String text(int id) {
        return controller.get().<TextView>findViewById(id).getText().toString();
    }

    private LinearLayout result() {
        return controller.get().findViewById(R.id.result);
    }

    private void open() throws Exception {
        controller.setup();
        Screens.until("opened", () -> text(R.id.timing).contains("Self-test passed") || !text(R.id.message).isEmpty());
        assertEquals("", text(R.id.message));
    }

    private void type(String words) throws Exception {
        controller.get().<EditText>findViewById(R.id.first).setText(words);
        Screens.until("answered", () -> result().getChildCount() > 0 || !text(R.id.message).isEmpty());
    }

    @Test
    public void aTypedSentenceIsAnswered() throws Exception {
        open();
        JsonObject row = Fixtures.lines(Fixtures.phone("text-classification").resolve("golden.jsonl")).get(0);
        type(row.get("text").getAsString());
        assertEquals("", text(R.id.message));
        String shown = Screens.texts(result());
        assertTrue(shown, shown.contains(", chosen]"));
        assertEquals(3, result().getChildCount());
        assertTrue(text(R.id.timing), text(R.id.timing).contains("ms for"));
        assertFalse(text(R.id.model).isEmpty());
    }
}
