package org.pocketbert.demo.share;

import android.content.ContentProvider;
import android.content.ContentValues;
import android.content.Context;
import android.database.Cursor;
import android.database.MatrixCursor;
import android.net.Uri;
import android.os.ParcelFileDescriptor;
import android.provider.OpenableColumns;
import java.io.File;
import java.io.FileNotFoundException;
import java.util.List;

/** Gives other apps the files that the user shares, read-only: JSON files in the folder {@code share} of the app's cache. */
public final class ShareProvider extends ContentProvider {
    private static final String AUTHORITY = "org.pocketbert.demo.share";
    private static final String FOLDER = "share";

    /** Returns where a file of this name is written before it is shared. */
    public static File file(Context context, String name) {
        return new File(new File(context.getCacheDir(), FOLDER), name);
    }

    /** Returns the address under which other apps read the file. */
    public static Uri address(String name) {
        return new Uri.Builder().scheme("content").authority(AUTHORITY).appendPath(name).build();
    }

    private File shared(Uri uri) throws FileNotFoundException {
        List<String> path = uri.getPathSegments();
        // One plain name: a path with dots or slashes could lead out of the folder.
        if (path.size() != 1 || !path.get(0).matches("[A-Za-z0-9_-]+\\.json")) {
            throw new FileNotFoundException("no shared file is at " + uri);
        }
        return file(getContext(), path.get(0));
    }

    @Override
    public boolean onCreate() {
        return true;
    }

    @Override
    public ParcelFileDescriptor openFile(Uri uri, String mode) throws FileNotFoundException {
        if (!"r".equals(mode)) {
            throw new FileNotFoundException("shared files are read-only");
        }
        return ParcelFileDescriptor.open(shared(uri), ParcelFileDescriptor.MODE_READ_ONLY);
    }

    @Override
    public Cursor query(Uri uri, String[] columns, String selection, String[] arguments, String order) {
        MatrixCursor cursor = new MatrixCursor(new String[] {OpenableColumns.DISPLAY_NAME, OpenableColumns.SIZE});
        try {
            File file = shared(uri);
            cursor.addRow(new Object[] {file.getName(), file.length()});
        } catch (FileNotFoundException e) {
            return cursor; // Without a row: there is no such file.
        }
        return cursor;
    }

    @Override
    public String getType(Uri uri) {
        return "application/json";
    }

    @Override
    public Uri insert(Uri uri, ContentValues values) {
        throw new UnsupportedOperationException("shared files are read-only");
    }

    @Override
    public int delete(Uri uri, String selection, String[] arguments) {
        throw new UnsupportedOperationException("shared files are read-only");
    }

    @Override
    public int update(Uri uri, ContentValues values, String selection, String[] arguments) {
        throw new UnsupportedOperationException("shared files are read-only");
    }
}
