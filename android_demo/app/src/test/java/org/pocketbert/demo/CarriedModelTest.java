package org.pocketbert.demo;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import android.content.res.AssetManager;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.RuntimeEnvironment;

/** Opens whatever model the app carries: a tiny one, or the folder that make test-android ARTEFACTS=FOLDER names. */
@RunWith(RobolectricTestRunner.class)
public class CarriedModelTest {
    @Test
    public void itPassesItsSelfTestAndAnswersARecordedText() throws Exception {
        AssetManager assets = RuntimeEnvironment.getApplication().getAssets();
        JsonObject row;
        try (BufferedReader golden =
                new BufferedReader(new InputStreamReader(assets.open("golden.jsonl"), StandardCharsets.UTF_8))) {
            row = JsonParser.parseString(golden.readLine()).getAsJsonObject();
        }
        try (Screen screen = new Screen().open()) {
            assertEquals("", screen.message());
            if (row.get("text").isJsonPrimitive()) {
                screen.type(row.get("text").getAsString());
                assertEquals("", screen.message());
                assertTrue(screen.result().getChildCount() > 0);
            }
        }
    }
}
