// Runs one model file in a frame of its own: LiteRT.js for TFLite, onnxruntime-web for ONNX. The page (page.js) uses `window.runner`;
// when the page removes the frame, the engine, its memory and its threads are gone.

const lib = (path) => new URL(`lib/${path}`, location.href).href;
const ARRAYS = { int64: BigInt64Array, int32: Int32Array, float32: Float32Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array };

/** Return the numbers of an input as the array that the engine takes. */
function toArray(kind, data) {
  const Kind = ARRAYS[kind];
  if (!Kind) throw new Error(`inputs of type ${kind} are not supported`);
  return kind === "int64" ? BigInt64Array.from(data, BigInt) : Kind.from(data);
}

/** Open a TFLite file with LiteRT.js; return functions that prepare the inputs of a run, and run them. */
async function openLitert(bytes, file, unit, threads) {
  const litert = await import("@litertjs/core");
  const jspi = unit !== "wasm" && "Suspending" in WebAssembly;
  if (unit === "webnn" && !jspi) throw new Error("LiteRT.js needs JSPI for WebNN, which this browser does not have");
  await litert.loadLiteRt(lib("core/wasm/"), jspi ? { jspi } : { threads: threads > 1 });
  const begin = performance.now();
  const options = { accelerator: unit };
  if (unit === "wasm" && threads > 1) options.cpuOptions = { numThreads: threads };
  const model = await litert.loadAndCompile(bytes, options);
  const loadMs = performance.now() - begin;
  // without JSPI a file that the GPU does not take whole runs on the CPU, and nothing says so but this
  if (unit !== "wasm" && !jspi && !model.isFullyAccelerated) throw new Error(`${unit} does not take the whole file`);
  const prepare = (feed) => {
    const key = file.keys[Object.values(feed)[0].shape[1]];
    const signature = model.signatures[key];
    if (!signature) throw new Error(`the file has no signature ${key}`);
    const inputs = signature.getInputDetails().map((d) => [d.name, toArray(d.dtype, feed[d.name].data), feed[d.name].shape]);
    return { signature, inputs };
  };
  const run = async ({ signature, inputs }) => {
    const tensors = Object.fromEntries(inputs.map(([name, data, shape]) => [name, new litert.Tensor(data, shape)]));
    const outputs = await signature.run(tensors);
    const read = {};
    for (const [name, tensor] of Object.entries(outputs)) {
      read[name] = { shape: Array.from(tensor.type.layout.dimensions), data: await tensor.data() };
      tensor.delete();
    }
    Object.values(tensors).forEach((tensor) => tensor.delete());
    return read;
  };
  return { loadMs, prepare, run };
}

/** Open an ONNX file with onnxruntime-web; return functions that prepare the inputs of a run, and run them. */
async function openOnnx(bytes, file, unit, threads) {
  const ort = await import(lib(`onnxruntime-web/dist/ort.${unit === "wasm" ? "wasm" : "webgpu"}.bundle.min.mjs`));
  ort.env.wasm.wasmPaths = lib("onnxruntime-web/dist/");
  ort.env.wasm.numThreads = threads;
  const begin = performance.now();
  const session = await ort.InferenceSession.create(bytes, { executionProviders: [unit] });
  const loadMs = performance.now() - begin;
  const kinds = Object.fromEntries(session.inputMetadata.map((one) => [one.name, one.type]));
  const prepare = (feed) =>
    session.inputNames.map((name) => [name, kinds[name], toArray(kinds[name], feed[name].data), feed[name].shape]);
  const run = async (inputs) => {
    const feeds = Object.fromEntries(inputs.map(([name, kind, data, shape]) => [name, new ort.Tensor(kind, data, shape)]));
    const outputs = await session.run(feeds);
    const read = {};
    for (const [name, tensor] of Object.entries(outputs)) read[name] = { shape: [...tensor.dims], data: await tensor.getData() };
    return read;
  };
  return { loadMs, prepare, run };
}

window.runner = {
  /** Open a file; return its load time in ms. */
  async open(bytes, file, unit, threads) {
    const open = file.format === "tflite" ? openLitert : openOnnx;
    const copy = new Uint8Array(bytes.length); // an array of this frame: the engines do not recognise one of the page's
    copy.set(bytes);
    const opened = await open(copy, file, unit, threads);
    this.prepare = opened.prepare;
    this.run = opened.run;
    return opened.loadMs;
  },
  /** Run each input `calls` times by this frame's clock; return the ms of one call per input. */
  async time(inputs, calls) {
    const samples = [];
    for (const one of inputs) {
      const begin = performance.now();
      for (let call = 0; call < calls; call++) await this.run(one);
      samples.push((performance.now() - begin) / calls);
    }
    return samples;
  },
};
window.parent.postMessage("runner is ready", location.origin);
