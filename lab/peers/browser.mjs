// An artefact folder's int8 TFLite file by LiteRT.js against transformers.js with the q8 file (onnx/model_quantized.onnx) of the same
// student, in one Chromium, whole answers from text to label on both sides, with the same tokenizer (transformers.js's).
//
//     node lab/peers/browser.mjs CHROMIUM FOLDER LIBRARIES
//
// LIBRARIES is a node_modules folder with @huggingface/transformers 4.3.1, onnxruntime-web, onnxruntime-common, puppeteer-core,
// @litertjs/core 2.5.3 and @litertjs/wasm-utils. Load time, first answer and memory are the medians of fresh browsers in turns; then
// one page holds both, which answer in turns of five. Prints JSON. One thread, on the CPU.
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { createRequire } from "node:module";

const [chromium, folder, libraries] = process.argv.slice(2).map((one) => path.resolve(one));
const puppeteer = (await import(createRequire(libraries + "/").resolve("puppeteer-core"))).default;
const STARTS = 5, ROUNDS = 20, TURN = 5;
const TYPES = { ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".json": "application/json" };

const PAGE = `<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><body>
<script type="importmap">{"imports": {
  "onnxruntime-web/webgpu": "/lib/onnxruntime-web/dist/ort.webgpu.bundle.min.mjs",
  "onnxruntime-common": "/lib/onnxruntime-common/dist/esm/index.js",
  "@huggingface/transformers": "/lib/@huggingface/transformers/dist/transformers.web.min.js",
  "@litertjs/core": "/lib/@litertjs/core/dist/index.js",
  "@litertjs/wasm-utils": "/lib/@litertjs/wasm-utils/dist/bundle.js"}}</script>
<script type="module">
const settle = async () => {
  const hub = await import("@huggingface/transformers");
  hub.env.allowRemoteModels = false; hub.env.allowLocalModels = true; hub.env.localModelPath = "/models/"; hub.env.useBrowserCache = false;
  hub.env.backends.onnx.wasm.wasmPaths = "/lib/onnxruntime-web/dist/"; hub.env.backends.onnx.wasm.numThreads = 1;
  return hub;
};
/** transformers.js as its documentation has it. */
const openPeer = async () => {
  const hub = await settle();
  const run = await hub.pipeline("text-classification", "phone", { dtype: "q8", device: "wasm" });
  return async (text) => (await run(text))[0].label;
};
/** The TFLite file by LiteRT.js, with the tokenizer of transformers.js. */
const openOurs = async () => {
  const hub = await settle();
  const [tokenizer, config, litert] = await Promise.all([
    hub.AutoTokenizer.from_pretrained("phone"), fetch("/models/phone/config.json").then((r) => r.json()), import("@litertjs/core"),
  ]);
  await litert.loadLiteRt("/lib/@litertjs/core/wasm/");
  const model = await litert.loadAndCompile("/models/phone/tflite/model_int8.tflite", { accelerator: "wasm" });
  const lengths = Object.entries(model.signatures).map(([key, one]) => [one.getInputDetails()[0].shape[1], one]).sort((a, b) => a[0] - b[0]);
  return async (text) => {
    const encoded = tokenizer(text, { return_tensor: false, truncation: true, max_length: lengths.at(-1)[0] });
    const [length, signature] = lengths.find(([l]) => l >= encoded.input_ids.length);
    const inputs = Object.fromEntries(signature.getInputDetails().map(({ name }) => {
      const ids = new Int32Array(length); ids.set(encoded[name] || encoded.input_ids.map(() => 0));
      return [name, new litert.Tensor(ids, [1, length])];
    }));
    const outputs = await signature.run(inputs), logits = await outputs.logits.data();
    [...Object.values(inputs), ...Object.values(outputs)].forEach((one) => one.delete());
    return config.id2label[logits.indexOf(Math.max(...logits))];
  };
};
const opens = { ours: openOurs, peer: openPeer };
window.begin = async (side, text) => {
  const begin = performance.now(), answer = await opens[side](), loaded = performance.now();
  const label = await answer(text), first = performance.now();
  return { load_ms: loaded - begin, first_ms: first - loaded, label };
};
window.race = async (texts, rounds, turn) => {
  const ours = await openOurs(), peer = await openPeer(), hub = await settle(), sides = { ours, peer }, times = {};
  const tokenizer = await hub.AutoTokenizer.from_pretrained("phone");
  const rows = Object.fromEntries(Object.entries(texts).map(([length, words]) => {
    let taken = words.length;
    while (taken && tokenizer.encode(words.slice(0, taken).join(" ")).length > +length) taken--;
    return [length, words.slice(0, taken).join(" ")];
  }));
  const same = [];
  for (const text of Object.values(rows)) same.push((await ours(text)) === (await peer(text)));
  for (const [length, text] of Object.entries(rows)) {
    times[length] = { tokens: tokenizer.encode(text).length, ours: [], peer: [] };
    for (let round = -2; round < rounds; round++) {
      for (const side of round % 2 ? ["ours", "peer"] : ["peer", "ours"]) {
        const samples = [];
        for (let i = 0; i <= turn; i++) {
          const begin = performance.now(); await sides[side](text);
          if (i) samples.push(performance.now() - begin);
        }
        if (round >= 0) times[length][side].push(samples);
      }
    }
  }
  return { times, same };
};
</script>`;

const server = http.createServer((request, response) => {
  response.setHeader("Cross-Origin-Opener-Policy", "same-origin");
  response.setHeader("Cross-Origin-Embedder-Policy", "require-corp");
  const url = decodeURI(request.url.split("?")[0]);
  if (url === "/") return response.setHeader("Content-Type", "text/html").end(PAGE);
  const [root, rest] = url.startsWith("/lib/") ? [libraries, url.slice(5)] : [folder, url.replace(/^\/models\/phone\//, "")];
  const file = path.join(root, rest);
  if (!file.startsWith(root + path.sep) || !fs.existsSync(file) || !fs.statSync(file).isFile()) return response.writeHead(404).end();
  response.setHeader("Content-Type", TYPES[path.extname(file)] || "application/octet-stream");
  response.setHeader("Content-Length", fs.statSync(file).size);
  fs.createReadStream(file).pipe(response);
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const address = `http://127.0.0.1:${server.address().port}/`;
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
const WORDS = "set an alarm for seven and play some quiet music in the kitchen then turn off the lights in the hall what is the weather like today".split(" ");
let version = "";

/** Return the resident memory in MB, without files, of the largest renderer of a browser. */
function rendererMemory(group) {
  const sizes = fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map((pid) => {
    try {
      if (+fs.readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ")[2] !== group) return 0;
      if (!fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("--type=renderer")) return 0;
      const status = fs.readFileSync(`/proc/${pid}/status`, "utf8");
      return ["RssAnon", "RssShmem"].reduce((sum, key) => sum + +new RegExp(`${key}:\\s+(\\d+)`).exec(status)[1], 0) / 1e3;
    } catch { return 0; }
  });
  return Math.max(...sizes);
}

/** Call a function of the page in a fresh browser. */
async function inPage(name, ...given) {
  const browser = await puppeteer.launch({ executablePath: chromium, protocolTimeout: 3e6, args: ["--no-sandbox", "--headless=new", "--disable-gpu"] });
  const page = await browser.newPage();
  page.on("pageerror", (error) => console.error(error.message));
  await page.goto(address);
  await page.waitForFunction((one) => window[one], {}, name);
  const value = await page.evaluate((one, args) => window[one](...args), name, given);
  value.memory_mb = rendererMemory(browser.process().pid);
  version = await browser.version();
  await browser.close();
  return value;
}

const starts = { ours: [], peer: [] };
for (let i = 0; i < STARTS; i++) for (const side of i % 2 ? ["ours", "peer"] : ["peer", "ours"]) starts[side].push(await inPage("begin", side, WORDS.slice(0, 8).join(" ")));
const texts = Object.fromEntries([16, 32, 64].map((length) => [length, Array.from({ length }, (_, i) => WORDS[i % WORDS.length])]));
const { times, same } = await inPage("race", texts, ROUNDS, TURN);
const rows = Object.entries(times).map(([length, one]) => {
  const ratios = one.peer.map((samples, i) => median(samples) / median(one.ours[i])).sort((a, b) => a - b);
  const cut = 5; // order statistics of 20 rounds: 95.9 %
  return { length, tokens: one.tokens, peer_ms: median(one.peer.flat()), ours_ms: median(one.ours.flat()), faster: median(ratios), low: ratios[cut], high: ratios[ratios.length - 1 - cut] };
});
const started = Object.fromEntries(Object.entries(starts).map(([side, all]) => [side, Object.fromEntries(["load_ms", "first_ms", "memory_mb"].map((key) => [key, median(all.map((one) => one[key]))]))]));
console.log(JSON.stringify({ browser: version, cpu: os.cpus()[0].model, cores: os.cpus().length, load_average: os.loadavg()[0], started, rows, same }, null, 1));
server.close();
