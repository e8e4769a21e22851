package org.pocketbert.engines;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.nio.ByteBuffer;
import org.junit.Test;

public class EngineTypesTest {
    @Test
    public void aTensorKnowsItsRows() {
        Tensor tensor = new Tensor(new float[] {1, 2, 3, 4, 5, 6}, new int[] {2, 3});
        assertArrayEquals(new float[] {4, 5, 6}, tensor.row(1), 0);
    }

    @Test
    public void aTensorRefusesAShapeThatDoesNotFit() {
        Exception e = assertThrows(IllegalArgumentException.class, () -> new Tensor(new float[5], new int[] {2, 3}));
        assertEquals("A tensor of shape [2, 3] has 6 values, not 5.", e.getMessage());
    }

    @Test
    public void aModelIsCopiedIntoADirectBufferAndAHeapBufferIsRefused() {
        ModelSource source = ModelSource.copyOf("m.onnx", "00", new byte[] {7, 8});
        assertTrue(source.content().isDirect());
        assertEquals(8, source.content().get(1));
        assertThrows(IllegalArgumentException.class, () -> new ModelSource("m.onnx", "00", ByteBuffer.wrap(new byte[2])));
    }

    @Test
    public void noThreadsAreRefused() {
        assertThrows(IllegalArgumentException.class, () -> SessionOptions.cpu(0));
    }

    @Test
    public void residentMemoryIsRead() {
        assertTrue(ResidentMemory.bytes() > 1 << 20);
    }
}
