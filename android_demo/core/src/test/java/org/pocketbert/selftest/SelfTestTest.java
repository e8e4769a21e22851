package org.pocketbert.selftest;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.junit.Test;
import org.pocketbert.answers.Cases;
import org.pocketbert.answers.FakeSession;
import org.pocketbert.answers.Matrix;
import org.pocketbert.answers.Predictor;
import org.pocketbert.artefacts.ArtefactException;
import org.pocketbert.artefacts.Artefacts;
import org.pocketbert.artefacts.Assets;
import org.pocketbert.artefacts.FolderAssets;
import org.pocketbert.artefacts.ModelFile;
import org.pocketbert.artefacts.NamedHead;
import org.pocketbert.artefacts.Task;
import org.pocketbert.selftest.SelfTestException.Reason;
import org.pocketbert.text.TextEncoder;
import org.pocketbert.text.TokenizerEncoder;

public class SelfTestTest {
    /** Answers as tests/android/answer_files.py does: column c at token i is the id there plus c. */
    private static FakeSession right(Cases cases, float shift) throws Exception {
        return shifted(cases, Collections.nCopies(cases.columns().size(), shift));
    }

    private static FakeSession shifted(Cases cases, List<Float> shifts) throws Exception {
        List<NamedHead> heads = cases.artefacts().heads();
        int maskId = cases.encoder(List.of()).maskId();
        List<Cases.Column> columns = cases.columns();
        boolean fills = heads.get(0).task() == Task.FILL_MASK;
        return new FakeSession(heads, maskId, List.of(12, 24), ids -> answer(columns, fills ? maskId : -1, ids, shifts));
    }

    private static Matrix answer(List<Cases.Column> columns, int maskId, long[] ids, List<Float> shifts) {
        List<Long> read = new ArrayList<>();
        double mean = 0;
        boolean anyMask = false;
        for (long id : ids) {
            mean += (double) id / ids.length;
            anyMask |= id == maskId;
        }
        for (long id : ids) {
            if (!anyMask || id == maskId) { // a text without masks is read at all tokens
                read.add(id);
            }
        }
        int width = columns.size();
        float[] values = new float[read.size() * width];
        for (int i = 0; i < values.length; i++) {
            int column = i % width;
            double number = columns.get(column).perToken() ? (double) read.get(i / width) : mean;
            values[i] = (float) ((number / 100 + column) * columns.get(column).factor()) + shifts.get(column);
        }
        return new Matrix(values, read.size(), width);
    }

    private static TextEncoder tokenizer(Cases cases) throws Exception {
        return TokenizerEncoder.read(cases.artefacts());
    }

    private static ModelFile file(Artefacts artefacts, String path) {
        return artefacts.models().stream().filter(m -> m.path().equals(path)).findFirst().orElseThrow();
    }

    @Test
    public void aRightEnginePassesEveryTask() throws Exception {
        for (String kit : Cases.kits()) {
            Cases cases = Cases.of(kit);
            Predictor predictor = new Predictor(cases.artefacts(), tokenizer(cases), cases.artefacts().standard(), right(cases, 0));
            for (ModelFile model : cases.artefacts().models()) {
                SelfTest test = new SelfTest(cases.artefacts(), model);
                SelfTest.Report report = test.check(predictor, "Fake 1.0");
                assertEquals(kit, SelfTest.ROWS, report.rows());
                assertTrue(kit, report.largest() < 1e-5);
                assertEquals(kit, 0.01, report.tolerance(), 0);
                assertEquals(kit, 12, test.checkAll(predictor, "Fake 1.0").rows());
            }
            assertEquals(kit, 60, new SelfTest(cases.artefacts(), cases.artefacts().standard()).checkTokenizer(tokenizer(cases)));
        }
    }

    @Test
    public void anEngineThatMiscomputesIsRefusedAndTheFileMadeForItIsNamed() throws Exception {
        for (String kit : Cases.kits()) {
            Cases cases = Cases.of(kit);
            Artefacts artefacts = cases.artefacts();
            Predictor predictor = new Predictor(artefacts, tokenizer(cases), artefacts.standard(), right(cases, 0.02f));
            SelfTest test = new SelfTest(artefacts, file(artefacts, "tflite/model_int8.tflite"));
            SelfTestException e = assertThrows(SelfTestException.class, () -> test.check(predictor, "TFLite 2.16.1"));
            assertEquals(Reason.ENGINE, e.reason());
            assertTrue(e.getMessage(), e.getMessage().startsWith("tflite/model_int8.tflite: TFLite 2.16.1 computes this file wrongly"));
            assertTrue(e.getMessage(), e.getMessage().contains("allowed 0.01"));
            assertTrue(e.getMessage(), e.getMessage().contains("Choose tflite/model_int8_tflite216.tflite"));
        }
    }

    @Test
    public void aHeadOfSmallNumbersIsAllowedAsMuchLess() throws Exception {
        for (String kit : List.of("slots-and-intent", "classifiers")) {
            Cases cases = Cases.of(kit);
            Artefacts artefacts = cases.artefacts();
            for (NamedHead head : artefacts.heads()) {
                List<Float> shifts = new ArrayList<>(Collections.nCopies(artefacts.labels().size(), 0f));
                shifts.set(head.start(), 0.003f);
                Predictor predictor = new Predictor(artefacts, tokenizer(cases), artefacts.standard(), shifted(cases, shifts));
                SelfTest test = new SelfTest(artefacts, artefacts.standard());
                if (head.task() == Task.REGRESSION) {
                    assertThrows(kit, SelfTestException.class, () -> test.check(predictor, "Fake 1.0"));
                } else {
                    test.check(predictor, "Fake 1.0");
                }
            }
        }
    }

    @Test
    public void answersThatAreNotFiniteOrOfAnotherShapeAreRefused() throws Exception {
        Cases cases = Cases.of("classification");
        Artefacts artefacts = cases.artefacts();
        List<Matrix> wrong = List.of(
                new Matrix(new float[] {Float.NaN, 0, 0}, 1, 3), new Matrix(new float[2], 1, 2), new Matrix(new float[4], 1, 4));
        for (Matrix matrix : wrong) {
            FakeSession session = new FakeSession(artefacts.heads(), -1, List.of(), ids -> matrix);
            Predictor predictor = new Predictor(artefacts, tokenizer(cases), artefacts.standard(), session);
            SelfTestException e = assertThrows(
                    SelfTestException.class, () -> new SelfTest(artefacts, artefacts.standard()).check(predictor, "Fake 1.0"));
            assertTrue(e.getMessage(), e.getMessage().contains("Choose another file or another version of the engine"));
        }
    }

    @Test
    public void aTokenizerThatGivesOtherTokensIsRefused() throws Exception {
        Cases cases = Cases.of("classification");
        TextEncoder wrong = cases.encoder(Cases.rows(cases.cases().get(0)));
        SelfTest test = new SelfTest(cases.artefacts(), cases.artefacts().standard());
        SelfTestException e = assertThrows(SelfTestException.class, () -> test.checkTokenizer(wrong));
        assertEquals(Reason.TOKENIZER, e.reason());
        assertTrue(e.getMessage(), e.getMessage().startsWith("tokenizer.json: recorded text 2"));
    }

    @Test
    public void goldenRowsThatAreDamagedOrTooFewAreRefused() throws Exception {
        Cases cases = Cases.of("classification");
        Assets damaged = path -> path.equals(GoldenRow.FILE_NAME)
                ? new java.io.ByteArrayInputStream("{}\n".getBytes())
                : new FolderAssets(cases.folder).open(path);
        Artefacts artefacts = Artefacts.read(damaged);
        Predictor predictor = new Predictor(artefacts, tokenizer(cases), artefacts.standard(), right(cases, 0));
        SelfTest test = new SelfTest(artefacts, artefacts.standard());
        ArtefactException e = assertThrows(ArtefactException.class, () -> test.check(predictor, "Fake 1.0"));
        assertEquals(GoldenRow.FILE_NAME, e.path());
    }
}
