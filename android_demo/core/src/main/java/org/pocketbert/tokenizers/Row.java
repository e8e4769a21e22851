package org.pocketbert.tokenizers;

import java.util.Arrays;

/** Tokens of one text while they are put together; a table that grows by rows. */
final class Row {
    static final int ID = 0;
    static final int TYPE = 1;
    static final int START = 2;
    static final int END = 3;
    static final int PART = 4;
    static final int WORD = 5;
    static final int LEADING = 6; // white space at the start of the token's text
    static final int TRAILING = 7; // and at its end
    private static final int WIDTH = 8;

    private int[] content;
    private int size;

    Row(int capacity) {
        content = new int[WIDTH * Math.max(8, capacity)];
    }

    int size() {
        return size;
    }

    void add(int id, int type, int start, int end, int part, int word, int leading, int trailing) {
        int at = WIDTH * size++;
        if (at + WIDTH > content.length) {
            content = Arrays.copyOf(content, 2 * content.length);
        }
        content[at] = id;
        content[at + TYPE] = type;
        content[at + START] = start;
        content[at + END] = end;
        content[at + PART] = part;
        content[at + WORD] = word;
        content[at + LEADING] = leading;
        content[at + TRAILING] = trailing;
    }

    int get(int index, int column) {
        return content[WIDTH * index + column];
    }

    void set(int index, int column, int value) {
        content[WIDTH * index + column] = value;
    }

    /** Adds a special token. */
    void addSpecial(int id, int type) {
        add(id, type, 0, 0, -1, -1, 0, 0);
    }

    /** Adds all tokens of another row, with one segment id where it is not negative. */
    void addAll(Row other, int type) {
        for (int i = 0; i < other.size; i++) {
            add(other.get(i, ID), type < 0 ? other.get(i, TYPE) : type, other.get(i, START), other.get(i, END),
                    other.get(i, PART), other.get(i, WORD), other.get(i, LEADING), other.get(i, TRAILING));
        }
    }

    /** Returns a part as a row of its own. */
    Row slice(int from, int to) {
        Row out = new Row(to - from);
        System.arraycopy(content, WIDTH * from, out.content, 0, WIDTH * (to - from));
        out.size = to - from;
        return out;
    }

    int[] column(int column) {
        int[] out = new int[size];
        for (int i = 0; i < size; i++) {
            out[i] = get(i, column);
        }
        return out;
    }
}
