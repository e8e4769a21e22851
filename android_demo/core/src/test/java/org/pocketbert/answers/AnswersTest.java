package org.pocketbert.answers;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.Test;
import org.pocketbert.answers.heads.Head;
import org.pocketbert.answers.heads.Heads;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.Configuration;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.artefacts.NamedHead;
import org.pocketbert.artefacts.Task;
import org.pocketbert.engines.Tensor;
import org.pocketbert.text.Batch;
import org.pocketbert.text.Input;
import org.pocketbert.text.TextEncoder;
import org.pocketbert.text.TextException;
import org.pocketbert.text.TokenizerEncoder;
import org.pocketbert.tokenizers.Encoding;
import org.pocketbert.tokenizers.Encodings;

/** Random outputs of every task give the answers that the Python side gives. */
public class AnswersTest {
    private static final double EXACT = 1e-6;

    @Test
    public void everyKitIsThere() {
        assertEquals(19, Cases.kits().size());
    }

    @Test
    public void answersEqualThoseOfPython() throws Exception {
        for (String kit : Cases.kits()) {
            Cases cases = Cases.of(kit);
            int number = 0;
            for (JsonObject example : cases.cases()) {
                for (List<Integer> lengths : List.of(List.<Integer>of(), List.of(24), List.of(8, 12, 24))) {
                    check(kit + " case " + number, cases, example, lengths);
                }
                number++;
            }
            assertEquals(60, number);
        }
    }

    @Test
    public void eachFileMarksTheAnswersBelowItsOwnThreshold() throws Exception {
        for (String kit : Cases.kits()) {
            Cases cases = Cases.of(kit);
            Artefacts artefacts = cases.artefacts();
            int differing = 0;
            for (JsonObject example : cases.cases()) {
                Input input = Cases.input(example.get("input"));
                boolean blank = input.first().isBlank() || (input.second() != null && input.second().isBlank());
                if (artefacts.task() != Task.TEXT_CLASSIFICATION || blank) {
                    continue;
                }
                JsonObject expected = example.getAsJsonObject("unknown");
                Set<Boolean> found = new HashSet<>();
                for (ModelFile file : artefacts.models()) {
                    Head head = Heads.of(artefacts, file, cases.encoder(Cases.rows(example)));
                    Prediction told =
                            (Prediction) head.answer(input, Cases.rows(example), List.of(matrix(example, 0)), false);
                    assertEquals(kit + " " + file.path(), expected.get(file.path()).getAsBoolean(), told.unknown());
                    found.add(told.unknown());
                }
                differing += found.size() - 1;
            }
            assertTrue(kit, differing > 0 == (kit.equals("thresholds") || kit.equals("temperature")));
        }
    }

    private static void check(String where, Cases cases, JsonObject example, List<Integer> lengths) throws Exception {
        Input input = Cases.input(example.get("input"));
        List<Encoding> rows = Cases.rows(example);
        Artefacts artefacts = cases.artefacts();
        int[] next = {0};
        FakeSession session = new FakeSession(
                artefacts.heads(), cases.encoder(rows).maskId(), lengths, ids -> matrix(example, next[0]++));
        Predictor predictor = new Predictor(artefacts, cases.encoder(rows), artefacts.standard(), session);
        JsonObject expected = example.getAsJsonObject("answer");
        if (input.first().isBlank() || (input.second() != null && input.second().isBlank())) {
            assertThrows(where, TextException.class, () -> predictor.predict(input));
            return;
        }
        Answer answer = predictor.predict(input);
        for (int i = 0; i < rows.size(); i++) {
            int tokens = rows.get(i).length();
            int shortest = lengths.stream().filter(n -> n >= tokens).findFirst().orElse(tokens);
            assertEquals(where, shortest, (int) session.ran.get(i));
        }
        assertEquals(where, expected.get("truncated").getAsBoolean(), answer.truncated());
        compare(where, expected, answer);
    }

    @Test
    public void theTokenizerOfTheFolderGivesTheRowsThatPythonReads() throws Exception {
        for (String kit : Cases.kits()) {
            Cases cases = Cases.of(kit);
            Artefacts artefacts = cases.artefacts();
            TextEncoder encoder = TokenizerEncoder.read(artefacts);
            boolean windows = artefacts.task() == Task.QUESTION_ANSWERING;
            boolean words = artefacts.heads().stream().anyMatch(head -> head.task() == Task.TOKEN_CLASSIFICATION);
            boolean places = windows || words;
            for (JsonObject example : cases.cases()) {
                Input input = Cases.input(example.get("input")).behind(artefacts.processing().prompt());
                int stride = artefacts.processing().stride();
                List<Encoding> found = windows ? encoder.windows(input, 24, stride) : List.of(encoder.encode(input, 24));
                List<Encoding> rows = Cases.rows(example);
                assertEquals(kit, rows.size(), found.size());
                for (int i = 0; i < rows.size(); i++) {
                    assertArrayEquals(kit, rows.get(i).ids(), found.get(i).ids());
                    assertArrayEquals(kit, rows.get(i).typeIds(), found.get(i).typeIds());
                    if (places) {
                        assertArrayEquals(kit, rows.get(i).starts(), found.get(i).starts());
                        assertArrayEquals(kit, rows.get(i).ends(), found.get(i).ends());
                        assertArrayEquals(kit, rows.get(i).parts(), found.get(i).parts());
                    }
                    if (words) { // of pairs the library numbers other things
                        assertArrayEquals(kit, rows.get(i).words(), found.get(i).words());
                    }
                    assertEquals(kit, !windows && rows.get(i).truncated(), !windows && found.get(i).truncated());
                }
            }
        }
    }

    @Test
    public void tokensAreSpelledAsPythonSpellsThem() throws Exception {
        Cases cases = Cases.of("fill-mask");
        TextEncoder expected = cases.encoder(List.of());
        TextEncoder found = TokenizerEncoder.read(cases.artefacts());
        assertEquals(expected.maskId(), found.maskId());
        for (int id = 0; id < Configuration.read(cases.artefacts()).vocabularySize(); id++) {
            assertEquals(expected.token(id), found.token(id));
            assertEquals(expected.decode(id), found.decode(id));
        }
    }

    private static Matrix matrix(JsonObject example, int row) {
        JsonObject found = example.getAsJsonArray("rows").get(row).getAsJsonObject();
        double[] numbers = Cases.numbers(found, "values");
        float[] values = new float[numbers.length];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) numbers[i];
        }
        int columns = found.get("columns").getAsInt();
        return new Matrix(values, values.length / columns, columns);
    }

    private static void compare(String where, JsonObject expected, Answer answer) {
        if (answer instanceof Prediction prediction) {
            assertEquals(where, expected.get("label").getAsString(), prediction.label());
            assertEquals(where, expected.get("unknown").getAsBoolean(), prediction.unknown());
            assertEquals(where, expected.get("score").getAsDouble(), prediction.score(), EXACT);
            assertArrayEquals(where, Cases.numbers(expected, "scores"), prediction.scores(), EXACT);
        } else if (answer instanceof Labelling labelling) {
            assertEquals(where, texts(expected.getAsJsonArray("labels")), labelling.given());
            assertArrayEquals(where, Cases.numbers(expected, "scores"), labelling.scores(), EXACT);
        } else if (answer instanceof Value value) {
            assertEquals(where, expected.get("value").getAsDouble(), value.value(), EXACT);
        } else if (answer instanceof Spans spans) {
            compareSpans(where, expected.getAsJsonArray("spans"), spans.spans());
        } else if (answer instanceof Excerpt excerpt) {
            assertEquals(where, expected.get("text").getAsString(), excerpt.text());
            assertEquals(where, expected.get("start").getAsInt(), excerpt.start());
            assertEquals(where, expected.get("end").getAsInt(), excerpt.end());
            assertEquals(where, expected.get("score").getAsDouble(), excerpt.score(), EXACT);
        } else if (answer instanceof Filled filled) {
            compareGuesses(where, expected.getAsJsonArray("places"), filled.places());
        } else if (answer instanceof HeadAnswers heads) {
            assertEquals(where, expected.size() - 1, heads.answers().size()); // one key is truncated
            heads.answers().forEach((name, own) -> compare(where + " " + name, expected.getAsJsonObject(name), own));
        } else {
            float[] vector = ((Embedding) answer).vector();
            double[] numbers = Cases.numbers(expected, "vector");
            assertEquals(where, numbers.length, vector.length);
            for (int i = 0; i < vector.length; i++) {
                assertEquals(where, numbers[i], vector[i], 0);
            }
        }
    }

    private static void compareSpans(String where, JsonArray expected, List<FoundSpan> spans) {
        assertEquals(where, expected.size(), spans.size());
        for (int i = 0; i < spans.size(); i++) {
            JsonObject span = expected.get(i).getAsJsonObject();
            assertEquals(where, span.get("start").getAsInt(), spans.get(i).start());
            assertEquals(where, span.get("end").getAsInt(), spans.get(i).end());
            assertEquals(where, span.get("label").getAsString(), spans.get(i).label());
            assertEquals(where, span.get("text").getAsString(), spans.get(i).text());
            assertEquals(where, span.get("score").getAsDouble(), spans.get(i).score(), EXACT);
        }
    }

    private static void compareGuesses(String where, JsonArray expected, List<List<Guess>> places) {
        assertEquals(where, expected.size(), places.size());
        for (int i = 0; i < places.size(); i++) {
            JsonArray guesses = expected.get(i).getAsJsonArray();
            assertEquals(where, guesses.size(), places.get(i).size());
            for (int j = 0; j < guesses.size(); j++) {
                JsonObject guess = guesses.get(j).getAsJsonObject();
                assertEquals(where, guess.get("token").getAsString(), places.get(i).get(j).token());
                assertEquals(where, guess.get("text").getAsString(), places.get(i).get(j).text());
                assertEquals(where, guess.get("score").getAsDouble(), places.get(i).get(j).score(), EXACT);
            }
        }
    }

    private static List<String> texts(JsonArray array) {
        List<String> out = new ArrayList<>();
        for (JsonElement element : array) {
            out.add(element.getAsString());
        }
        return out;
    }

    private static Readout readout(Task task, String... labels) {
        return new Readout(List.of(NamedHead.only(task, List.of(labels), task.score(), new double[0])), -1);
    }

    @Test
    public void outputsOfAnotherTaskAreRefused() throws Exception {
        Readout readout = readout(Task.QUESTION_ANSWERING);
        Batch batch = batch();
        Map<String, Tensor> logits = Map.of("logits", new Tensor(new float[6], new int[] {1, 6}));
        AnswerException e = assertThrows(AnswerException.class, () -> readout.matrix(logits, batch, 0));
        assertTrue(e.getMessage(), e.getMessage().contains("start_logits"));
        Map<String, Tensor> odd = Map.of(
                "start_logits", new Tensor(new float[3], new int[] {1, 3}),
                "end_logits", new Tensor(new float[2], new int[] {1, 2}));
        e = assertThrows(AnswerException.class, () -> readout.matrix(odd, batch, 0));
        assertTrue(e.getMessage(), e.getMessage().contains("shape [1, 2]"));
    }

    @Test
    public void headsOfAnotherFileAreRefused() throws Exception {
        Readout readout = new Readout(Cases.of("slots-and-intent").artefacts().heads(), -1);
        Map<String, Tensor> outputs = new HashMap<>();
        outputs.put("slots_logits", new Tensor(new float[15], new int[] {1, 3, 5}));
        outputs.put("mood_logits", new Tensor(new float[1], new int[] {1, 1}));
        AnswerException e = assertThrows(AnswerException.class, () -> readout.matrix(outputs, batch(), 0));
        assertTrue(e.getMessage(), e.getMessage().contains("needs [intent_logits]"));
        outputs.put("intent_logits", new Tensor(new float[2], new int[] {1, 2}));
        e = assertThrows(AnswerException.class, () -> readout.matrix(outputs, batch(), 0));
        assertTrue(e.getMessage(), e.getMessage().contains("answers 2 numbers of intent, the folder lists 3"));
        outputs.put("intent_logits", new Tensor(new float[] {1, 2, 3}, new int[] {1, 3}));
        Matrix matrix = readout.matrix(outputs, batch(), 0);
        assertEquals(3, matrix.rows());
        assertArrayEquals(new float[] {0, 0, 0, 0, 0, 0, 1, 2, 3}, matrix.row(2), 0);
    }

    @Test
    public void numbersThatAreNotFiniteAreRefused() {
        Readout readout = readout(Task.REGRESSION);
        for (float wrong : new float[] {Float.NaN, Float.POSITIVE_INFINITY}) {
            Map<String, Tensor> outputs = Map.of("logits", new Tensor(new float[] {wrong}, new int[] {1, 1}));
            assertThrows(AnswerException.class, () -> readout.matrix(outputs, batch(), 0));
        }
    }

    @Test
    public void probabilitiesOfAFileAreNotScoredTwice() throws Exception {
        Readout readout = readout(Task.TEXT_CLASSIFICATION, "no", "yes");
        Tensor tensor = new Tensor(new float[] {0.25f, 0.75f}, new int[] {1, 2});
        Matrix matrix = readout.matrix(Map.of("probabilities", tensor), batch(), 0);
        Cases cases = Cases.of("pairs"); // two labels
        Head head = Heads.of(cases.artefacts(), cases.artefacts().standard(), cases.encoder(List.of()));
        Prediction answer = (Prediction) head.answer(Input.of("a"), List.of(row()), List.of(matrix), true);
        assertEquals(0.75, answer.score(), 0);
    }

    private static Encoding row() {
        int[] three = {1, 2, 3};
        return Encodings.of(three, three);
    }

    private static Batch batch() {
        return Batch.of(List.of(row()), 3, 0, false);
    }
}
