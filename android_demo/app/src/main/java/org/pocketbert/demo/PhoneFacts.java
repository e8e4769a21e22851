package org.pocketbert.demo;

import android.app.ActivityManager;
import android.content.Context;
import android.content.Intent;
import android.content.IntentFilter;
import android.os.BatteryManager;
import android.os.Build;
import android.os.PowerManager;
import org.pocketbert.statistics.Phone;

/** Reads what a measurement must say about the phone. */
final class PhoneFacts {
    private static final String[] THERMAL = {"none", "light", "moderate", "severe", "critical", "emergency", "shutdown"};
    private static final int PERCENT = 100;

    private final Context context;

    PhoneFacts(Context context) {
        this.context = context;
    }

    /** Returns maker, model, chip, system and memory; nothing that identifies the owner. */
    Phone phone() {
        ActivityManager.MemoryInfo memory = new ActivityManager.MemoryInfo();
        ActivityManager manager = (ActivityManager) context.getSystemService(Context.ACTIVITY_SERVICE);
        manager.getMemoryInfo(memory);
        boolean emulated = Build.FINGERPRINT.contains("generic")
                || Build.HARDWARE.contains("ranchu")
                || Build.HARDWARE.contains("goldfish")
                || Build.FINGERPRINT.contains("robolectric");
        return new Phone(
                Build.MANUFACTURER,
                Build.MODEL,
                Build.VERSION.SDK_INT >= Build.VERSION_CODES.S ? chip() : Build.HARDWARE,
                Build.VERSION.RELEASE,
                Build.VERSION.SDK_INT,
                Build.SUPPORTED_ABIS.length == 0 ? "" : Build.SUPPORTED_ABIS[0],
                Runtime.getRuntime().availableProcessors(),
                memory.totalMem,
                emulated);
    }

    @NewerApi
    private static String chip() {
        return Build.SOC_MANUFACTURER + " " + Build.SOC_MODEL;
    }

    /** Returns the thermal status, such as {@code none} or {@code severe}; empty before Android 10. */
    String thermal() {
        return Build.VERSION.SDK_INT >= Build.VERSION_CODES.Q ? thermalStatus() : "";
    }

    @NewerApi
    private String thermalStatus() {
        PowerManager power = (PowerManager) context.getSystemService(Context.POWER_SERVICE);
        int status = power.getCurrentThermalStatus();
        return status >= 0 && status < THERMAL.length ? THERMAL[status] : String.valueOf(status);
    }

    /** Returns whether the phone charges and how full its battery is; empty where it does not tell. */
    String power() {
        Intent battery = context.registerReceiver(null, new IntentFilter(Intent.ACTION_BATTERY_CHANGED));
        if (battery == null) {
            return "";
        }
        int scale = battery.getIntExtra(BatteryManager.EXTRA_SCALE, 0);
        int level = battery.getIntExtra(BatteryManager.EXTRA_LEVEL, -1);
        String from = battery.getIntExtra(BatteryManager.EXTRA_PLUGGED, 0) == 0 ? "battery" : "charger";
        return scale <= 0 || level < 0 ? from : from + ", " + PERCENT * level / scale + " %";
    }
}
