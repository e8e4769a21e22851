// Opens a model file: LiteRT.js for TFLite, onnxruntime-node or onnxruntime-web for ONNX.

/** @typedef {{ shape: number[], data: Float32Array }} Output */
/** @typedef {{ name: string, version: string, inputs: string[], lengths: number[], run: (feed: Record<string, number[]>) => Promise<Record<string, Output>>, close: () => void | Promise<void> }} Session */

const INSTALL = { onnx: "npm install onnxruntime-web (or, in Node, onnxruntime-node)", tflite: "npm install @litertjs/core" };
const ARRAYS = { int32: Int32Array, int64: BigInt64Array };
const inNode = typeof process !== "undefined" && Boolean(process.versions?.node);

/** Return whether an engine for a file of this format can be there: LiteRT.js runs in browsers only. */
export function canOpen({ format }) {
  return format === "onnx" || (format === "tflite" && !inNode);
}

/**
 * Open a model file.
 * @param {Uint8Array} bytes Its content.
 * @param {any} record Its record in artifacts.json.
 * @param {any} options As of `load`.
 * @returns {Promise<Session>}
 */
export async function openSession(bytes, record, options) {
  if (options.engine) return options.engine(bytes, record, options);
  if (record.format === "onnx") return openOnnx(bytes, options);
  if (record.format === "tflite" && inNode) throw new Error(`${record.path}: LiteRT.js runs in browsers only; in Node take an ONNX file.`);
  if (record.format === "tflite") return openLitert(bytes, options);
  throw new Error(`${record.path}: files of the format ${record.format} do not run in JavaScript.`);
}

/** Import the first module that is there. */
async function importFirst(names, format) {
  for (const load of names) {
    try {
      const module = await load();
      return module.InferenceSession || module.loadLiteRt ? module : module.default;
    } catch (error) {
      if (!/ERR_MODULE_NOT_FOUND|MODULE_NOT_FOUND/.test(error.code ?? "") && !/resolve|specifier|import/i.test(error.message)) throw error;
    }
  }
  throw new Error(`no engine for ${format} files is installed: ${INSTALL[format]}`);
}

async function openOnnx(bytes, { ort: given, wasm, threads, accelerator = "cpu" }) {
  // before the first session: ONNX Runtime reports to its vendor otherwise
  if (inNode) process.env.ORT_DISABLE_TELEMETRY ??= "1";
  const node = inNode ? [() => import("onnxruntime-node")] : [];
  const ort = given ?? (await importFirst([...node, () => import("onnxruntime-web")], "onnx"));
  const native = inNode && "listSupportedBackends" in ort;
  if (wasm) ort.env.wasm.wasmPaths = folderAddress(wasm);
  if (threads && !native) ort.env.wasm.numThreads = threads;
  const provider = accelerator === "cpu" ? (native ? "cpu" : "wasm") : accelerator;
  const settings = { executionProviders: [provider], ...(native && threads ? { intraOpNumThreads: threads } : {}) };
  const session = await (provider === "cpu" && (await saturates()) ? openPrecisely(ort, bytes, settings) : ort.InferenceSession.create(bytes, settings));
  const types = Object.fromEntries((session.inputMetadata ?? []).map((one) => [one.name, one.type]));
  const version = ort.env.versions?.[native ? "node" : "web"] ?? ort.env.versions?.common ?? "";
  const run = async (feed) => {
    const tensors = Object.fromEntries(session.inputNames.map((name) => {
      const type = types[name] ?? "int64";
      const data = type === "int64" ? BigInt64Array.from(feed[name], BigInt) : ARRAYS[type].from(feed[name]);
      return [name, new ort.Tensor(type, data, [1, feed[name].length])];
    }));
    const read = {};
    for (const [name, tensor] of Object.entries(await session.run(tensors))) {
      read[name] = { shape: [...tensor.dims], data: Float32Array.from(await tensor.getData()) };
      tensor.dispose?.();
    }
    return read;
  };
  return { name: native ? "onnxruntime-node" : "onnxruntime-web", version, inputs: [...session.inputNames], lengths: [], run, close: () => session.release() };
}

/**
 * Open a file so that its int8 products do not saturate, if ONNX Runtime can. Layers that share int8 weights (ALBERT) do not open
 * like that: where these are dequantized, as in static files, they are computed in fp32; in dynamic files they saturate.
 */
function openPrecisely(ort, bytes, settings) {
  const open = (session) => ort.InferenceSession.create(bytes, { ...settings, logSeverityLevel: 4, extra: { session: { x64quantprecision: "1", ...session } } });
  return open({})
    .catch(() => open({ disable_quant_qdq: "1" }))
    .catch(() => ort.InferenceSession.create(bytes, settings));
}

/** Return whether int8 products of this processor may saturate in Node: on x86 without VNNI, or where that cannot be seen. */
async function saturates() {
  if (!["x64", "ia32"].includes(process.arch)) return false;
  const { readFile } = await import("node:fs/promises");
  return !/vnni/.test(await readFile("/proc/cpuinfo", "utf8").catch(() => ""));
}

/** Return the address of a folder, with a slash at its end. */
function folderAddress(folder) {
  const text = String(folder);
  const whole = text.endsWith("/") ? text : `${text}/`;
  return globalThis.location ? new URL(whole, globalThis.location.href).href : whole;
}

let loaded = null; // LiteRT.js's WebAssembly is loaded once in a page

async function openLitert(bytes, { litert: given, wasm, threads = 1, accelerator = "cpu" }) {
  const litert = given ?? (await importFirst([() => import("@litertjs/core")], "tflite"));
  if (!wasm) throw new Error("LiteRT.js needs the option `litertWasm`: the address of the folder `wasm` of @litertjs/core, served by you.");
  const unit = accelerator === "cpu" ? "wasm" : accelerator;
  const jspi = unit !== "wasm" && "Suspending" in WebAssembly;
  const threaded = unit === "wasm" && threads > 1 && globalThis.crossOriginIsolated === true;
  loaded ??= litert.loadLiteRt(folderAddress(wasm), jspi ? { jspi } : { threads: threaded });
  try {
    await loaded;
  } catch (error) {
    loaded = null; // the next call may reach the files
    throw error;
  }
  const model = await litert.loadAndCompile(bytes, { accelerator: unit, ...(threaded ? { cpuOptions: { numThreads: threads } } : {}) });
  if (unit !== "wasm" && !jspi && !model.isFullyAccelerated) throw new Error(`${unit} does not take the whole file.`);
  const byLength = new Map();
  for (const signature of Object.values(model.signatures)) {
    const details = signature.getInputDetails();
    byLength.set(Number(Array.from(details[0].shape)[1]), { signature, details });
  }
  const lengths = [...byLength.keys()].sort((a, b) => a - b);
  const run = async (feed) => {
    const { signature, details } = byLength.get(Object.values(feed)[0].length);
    const tensors = Object.fromEntries(details.map(({ name, dtype }) => [name, new litert.Tensor((ARRAYS[dtype] ?? Int32Array).from(feed[name]), [1, feed[name].length])]));
    const read = {};
    try {
      for (const [name, tensor] of Object.entries(await signature.run(tensors))) {
        read[name] = { shape: Array.from(tensor.type.layout.dimensions), data: Float32Array.from(await tensor.data()) };
        tensor.delete();
      }
    } finally {
      Object.values(tensors).forEach((tensor) => tensor.delete());
    }
    return read;
  };
  const inputs = byLength.get(lengths[0]).details.map(({ name }) => name);
  const version = ""; // the library does not tell its own
  return { name: "@litertjs/core", version, inputs, lengths, run, close: () => model.delete?.() };
}
