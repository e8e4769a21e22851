package org.pocketbert.tokenizers;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Reads the post-processor of tokenizer.json. */
final class FrameReader {
    private static final String SUPPORTED = "BertProcessing, ByteLevel, RobertaProcessing, Sequence, TemplateProcessing";
    private static final int MOST_SLOTS = 18;
    private static final int MOST_ID = 1 << 24;

    private final List<Frame.Trim> trims = new ArrayList<>();
    private Frame frame;

    private FrameReader() {}

    static Frame read(Object value, String where) throws TokenizerException {
        FrameReader reader = new FrameReader();
        if (value != null) {
            reader.step(value, where);
        }
        Frame made = reader.frame == null ? Frame.none() : reader.frame;
        return made.with(reader.trims);
    }

    private void step(Object value, String where) throws TokenizerException {
        Fields fields = Fields.of(value, where);
        String type = fields.text("type", null);
        if (frame != null) {
            throw fields.refused("the post-processor '" + type + "' behind one that adds special tokens is not supported.");
        }
        switch (type) {
            case "Sequence" -> {
                int index = 0;
                for (Object step : fields.list("processors")) {
                    step(step, where + ".processors[" + index++ + "]");
                }
            }
            case "ByteLevel" -> {
                boolean prefix = fields.flag("add_prefix_space", null);
                fields.flag("use_regex", true); // of the pre-tokenizer; it has no meaning here
                if (fields.flag("trim_offsets", null)) {
                    trims.add(new Frame.Trim(prefix));
                }
            }
            case "BertProcessing" -> {
                int cls = token(fields, "cls");
                int sep = token(fields, "sep");
                frame = new Frame(
                        List.of(slot(cls, 0), slot(Frame.FIRST, -1), slot(sep, 0)),
                        List.of(slot(cls, 0), slot(Frame.FIRST, -1), slot(sep, 0), slot(Frame.SECOND, -1), slot(sep, 1)),
                        List.of(), false);
            }
            case "RobertaProcessing" -> {
                int cls = token(fields, "cls");
                int sep = token(fields, "sep");
                boolean prefix = fields.flag("add_prefix_space", null);
                if (fields.flag("trim_offsets", null)) {
                    trims.add(new Frame.Trim(prefix));
                }
                List<Frame.Slot> first = List.of(slot(cls, 0), slot(Frame.FIRST, 0), slot(sep, 0));
                List<Frame.Slot> both = new ArrayList<>(first);
                both.addAll(List.of(slot(sep, 0), slot(Frame.SECOND, 0), slot(sep, 0)));
                frame = new Frame(first, both, List.of(), false);
            }
            case "TemplateProcessing" -> frame = template(fields);
            default -> throw fields.refused("the post-processor '" + type + "' is not supported; supported are " + SUPPORTED + ".");
        }
        fields.done();
    }

    private static Frame.Slot slot(int id, int type) {
        return new Frame.Slot(id, type);
    }

    private static int token(Fields fields, String name) throws TokenizerException {
        List<?> pair = fields.list(name);
        if (pair.size() != 2 || !(pair.get(0) instanceof String)) {
            throw fields.refused("'" + name + "' is " + Fields.shown(pair) + ", it must be a token and its id.");
        }
        return fields.whole(pair.get(1), name, MOST_ID);
    }

    private static Frame template(Fields fields) throws TokenizerException {
        Map<String, int[]> specials = new HashMap<>();
        Fields named = fields.object("special_tokens");
        for (String name : List.copyOf(named.rest().keySet())) {
            Fields token = named.object(name);
            List<?> ids = token.list("ids");
            token.drop("id", "tokens");
            token.done();
            int[] numbers = new int[ids.size()];
            for (int i = 0; i < numbers.length; i++) {
                numbers[i] = token.whole(ids.get(i), "ids", MOST_ID);
            }
            specials.put(name, numbers);
        }
        return new Frame(slots(fields, "single", specials, 1), slots(fields, "pair", specials, 2), List.of(), true);
    }

    private static List<Frame.Slot> slots(Fields fields, String key, Map<String, int[]> specials, int texts) throws TokenizerException {
        List<Frame.Slot> out = new ArrayList<>();
        int seen = 0;
        for (Object piece : fields.list(key)) {
            Fields one = Fields.of(piece, fields.where() + "." + key);
            boolean text = one.has("Sequence");
            Fields inside = one.object(text ? "Sequence" : "SpecialToken");
            one.done();
            String id = inside.text("id", null);
            int type = inside.number("type_id", null, 1 << 16);
            inside.done();
            if (text) {
                seen += id.equals("A") ? 1 : id.equals("B") ? 16 : 256;
                out.add(slot(id.equals("A") ? Frame.FIRST : Frame.SECOND, type));
                continue;
            }
            int[] ids = specials.get(id);
            if (ids == null) {
                throw inside.refused("'" + id + "' is not among its special tokens.");
            }
            for (int number : ids) {
                out.add(slot(number, type));
            }
        }
        if (out.size() > MOST_SLOTS || seen != (texts == 1 ? 1 : 17)) {
            throw fields.refused("'" + key + "' must have each text once and at most 16 special tokens.");
        }
        return out;
    }
}
