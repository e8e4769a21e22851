package org.pocketbert.demo;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;
import static org.robolectric.Shadows.shadowOf;

import android.content.Intent;
import android.net.Uri;
import android.os.ParcelFileDescriptor;
import android.view.View;
import android.widget.EditText;
import android.widget.TextView;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.After;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.pocketbert.demo.share.ShareProvider;
import org.pocketbert.testing.Shim;
import org.robolectric.Robolectric;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.android.controller.ActivityController;
import org.robolectric.shadows.ShadowLog;

@RunWith(RobolectricTestRunner.class)
public class BenchmarkActivityTest {
    static {
        Shim.loadIfThere(); // Before TFLite's class is loaded, which tries only once.
    }

    private ActivityController<BenchmarkActivity> controller;

    private void open(Intent intent) {
        controller = Robolectric.buildActivity(BenchmarkActivity.class, intent).setup();
    }

    @After
    public void end() {
        if (!controller.get().isDestroyed()) {
            controller.destroy();
        }
    }

    private String text(int id) {
        return controller.get().<TextView>findViewById(id).getText().toString();
    }

    private boolean canShare() {
        return controller.get().findViewById(R.id.share).isEnabled();
    }

    private void run(String runs, String seconds) throws Exception {
        controller.get().<EditText>findViewById(R.id.runs).setText(runs);
        controller.get().<EditText>findViewById(R.id.seconds).setText(seconds);
        controller.get().findViewById(R.id.start).performClick();
        Screens.until("measured", () -> canShare() || !text(R.id.message).isEmpty());
        assertEquals("", text(R.id.message));
    }

    @Test
    public void aRunShowsPercentilesAndADistribution() throws Exception {
        open(new Intent());
        run("20", "0");
        assertTrue(text(R.id.figures), text(R.id.figures).startsWith("60 runs of 48 tokens"));
        View histogram = controller.get().findViewById(R.id.histogram);
        assertEquals(View.VISIBLE, histogram.getVisibility());
        assertTrue(histogram.getContentDescription().toString().startsWith("Distribution of 60 runs: from "));
        assertEquals("onnx/model_int8.onnx · CPU · 1 thread", text(R.id.setting));
        assertEquals("", text(R.id.sustained));
    }

    @Test
    public void aSustainedRunShowsEverySecondWithItsThermalStatus() throws Exception {
        open(new Intent());
        run("2", "2");
        String shown = text(R.id.sustained);
        assertTrue(shown, shown.startsWith("1 s: median ") && shown.contains("\n2 s: median "));
        assertTrue(shown, shown.contains("thermal status none"));
        assertTrue(shown, shown.contains("times as slow as the first."));
    }

    @Test
    public void theRecordIsSharedThroughTheProvider() throws Exception {
        open(new Intent());
        run("5", "0");
        controller.get().findViewById(R.id.share).performClick();
        Intent chooser = shadowOf(controller.get()).getNextStartedActivity();
        Intent send = chooser.getParcelableExtra(Intent.EXTRA_INTENT, Intent.class);
        assertEquals(Intent.ACTION_SEND, send.getAction());
        assertEquals("application/json", send.getType());
        assertTrue((send.getFlags() & Intent.FLAG_GRANT_READ_URI_PERMISSION) != 0);
        Uri stream = send.getParcelableExtra(Intent.EXTRA_STREAM, Uri.class);
        ShareProvider provider = Robolectric.setupContentProvider(ShareProvider.class, stream.getAuthority());
        try (ParcelFileDescriptor file = provider.openFile(stream, "r");
                InputStream in = new ParcelFileDescriptor.AutoCloseInputStream(file)) {
            String json = new String(in.readAllBytes(), StandardCharsets.UTF_8);
            JsonObject record = JsonParser.parseString(json).getAsJsonObject();
            assertEquals("onnx/model_int8.onnx",
                    record.getAsJsonArray("files").get(0).getAsJsonObject().get("path").getAsString());
            keep("benchmark.json", json); // Python imports it: tests/android/imported_record.py
        }
        assertThrows(FileNotFoundException.class, () -> provider.openFile(stream, "w"));
        Uri outside = new Uri.Builder().scheme("content").authority(stream.getAuthority()).appendPath("..").build();
        assertThrows(FileNotFoundException.class, () -> provider.openFile(outside, "r"));
    }

    private static void keep(String name, String text) throws Exception {
        Path folder = Path.of(System.getProperty("pocketbert.shim")).resolveSibling("records");
        Files.createDirectories(folder);
        Files.writeString(folder.resolve(name), text);
    }

    @Test
    public void anIntentMeasuresAndWritesWithoutAHand() throws Exception {
        open(new Intent().putExtra("model", "onnx/model_int8.onnx").putExtra("runs", 4).putExtra("threads", 2)
                .putExtra("length", 16));
        Screens.until("finished", () -> controller.get().isFinishing());
        File file = new File(RuntimeEnvironment.getApplication().getExternalFilesDir(null), BenchmarkActivity.FILE);
        JsonObject record = JsonParser.parseString(Files.readString(file.toPath())).getAsJsonObject();
        JsonObject measured = record.getAsJsonArray("files").get(0).getAsJsonObject();
        assertEquals(2, measured.get("threads").getAsInt());
        JsonObject cell = measured.getAsJsonArray("cells").get(0).getAsJsonObject();
        assertEquals(16, cell.get("length").getAsInt());
        assertEquals(4, cell.getAsJsonArray("wall_ms").get(0).getAsJsonArray().size());
        assertTrue(record.getAsJsonObject("phone").get("emulated").getAsBoolean()); // This is no phone.
        StringBuilder log = new StringBuilder();
        ShadowLog.getLogsForTag("PocketBERT").forEach(line -> log.append(line.msg));
        assertTrue(log.toString(), log.toString().contains("\"wall_ms\""));
    }

    @Test
    public void anIntentThatCannotBeMeasuredWritesWhy() throws Exception {
        open(new Intent().putExtra("model", "onnx/none.onnx").putExtra("runs", 4));
        Screens.until("finished", () -> controller.get().isFinishing());
        File file = new File(RuntimeEnvironment.getApplication().getExternalFilesDir(null), BenchmarkActivity.FILE);
        String error = JsonParser.parseString(Files.readString(file.toPath())).getAsJsonObject().get("error").getAsString();
        assertTrue(error, error.contains("onnx/none.onnx") && error.contains("onnx/model_int8.onnx"));
    }

    @Test
    public void wrongNumbersOfAnIntentAreNamed() throws Exception {
        open(new Intent().putExtra("runs", 0).putExtra("stay", true));
        assertEquals("runs is 0; allowed: 1 to 100000.", text(R.id.message));
        assertFalse(controller.get().isFinishing());
        controller.destroy();
        open(new Intent().putExtra("runs", 1).putExtra("processor", "tpu").putExtra("stay", true));
        assertEquals("processor is 'tpu'; allowed: cpu, gpu, npu.", text(R.id.message));
    }

    @Test
    public void wrongNumbersInTheFieldsAreNamed() {
        open(new Intent());
        controller.get().<EditText>findViewById(R.id.runs).setText("");
        controller.get().findViewById(R.id.start).performClick();
        assertEquals("Runs must be a whole number from 1 to 100000.", text(R.id.message));
        controller.get().<EditText>findViewById(R.id.runs).setText("1");
        controller.get().<EditText>findViewById(R.id.seconds).setText("9999");
        controller.get().findViewById(R.id.start).performClick();
        assertEquals("Seconds must be a whole number from 0 to 3600.", text(R.id.message));
    }

    @Test
    public void turningThePhoneDoesNotEndARun() throws Exception {
        open(new Intent());
        controller.get().<EditText>findViewById(R.id.runs).setText("300");
        controller.get().findViewById(R.id.start).performClick();
        Screens.until("begun", () -> controller.get().<android.widget.ProgressBar>findViewById(R.id.progress).getProgress() > 0);
        controller.recreate();
        Screens.until("measured", this::canShare);
        assertTrue(text(R.id.figures), text(R.id.figures).startsWith("900 runs"));
        assertNotNull(controller.get().findViewById(R.id.histogram).getContentDescription());
    }

    @Test
    public void aStoppedRunKeepsWhatItHas() throws Exception {
        open(new Intent());
        controller.get().<EditText>findViewById(R.id.runs).setText("100000");
        controller.get().findViewById(R.id.start).performClick();
        Screens.until("begun", () -> controller.get().<android.widget.ProgressBar>findViewById(R.id.progress).getProgress() > 0);
        controller.get().findViewById(R.id.start).performClick();
        Screens.until("stopped", this::canShare);
        assertEquals("Stopped.", text(R.id.message));
        assertFalse(text(R.id.figures).isEmpty());
    }
}
