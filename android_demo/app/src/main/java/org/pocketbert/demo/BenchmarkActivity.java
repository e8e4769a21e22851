package org.pocketbert.demo;

import android.app.Activity;

/** Placeholder. */
public final class BenchmarkActivity extends Activity {}
