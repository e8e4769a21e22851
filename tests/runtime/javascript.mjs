// Runs runtime/javascript on fixtures with an engine that returns recorded outputs: node javascript.mjs PACKAGE FOLDER COMMAND.
// Prints a line of JSON per kit (`answers`: what differs) or per refusal (`refusals`: the message), per tokenizer (`tokens`), or per
// session (`sessions`: how it was opened).
import { promises, readFileSync, readdirSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const [home, root, command] = process.argv.slice(2);
const { load, Tokenizer } = await import(pathToFileURL(path.join(home, "index.js")));
const lines = (file) => readFileSync(file, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
const say = (value) => console.log(JSON.stringify(value));
const reader = (folder, changed = {}) => async (name) => changed[name]?.() ?? new Uint8Array(readFileSync(path.join(folder, name)));

/** Return the outputs of a file of the folder: name, first column and number of columns. */
function outputsOf(list, width) {
  const single = { "question-answering": [["start_logits", 0, 1], ["end_logits", 1, 1]], "feature-extraction": [["sentence_embedding", 0, width]] };
  if (!list.heads) return single[list.task] ?? [["logits", 0, width]];
  return Object.keys(list.heads).map((name) => {
    const own = list.labels.map((label, i) => (label.startsWith(`${name}: `) ? i : -1)).filter((i) => i >= 0);
    return [`${name}_logits`, own[0], own.length];
  });
}

/**
 * Return an engine: for the ids of a case its outputs, for others a sum over the ids, as tests/android/answer_files.py has it.
 * `columns` are those of tokens.json; `wrong(column)` is added to the sums.
 */
function fakeEngine(list, columns, { lengths = [], wrong = () => 0 } = {}) {
  const state = { recorded: true, rows: [] };
  const engine = async () => ({
    name: "fake", version: "1", inputs: ["input_ids", "attention_mask"], lengths, close() {},
    async run({ input_ids: ids, attention_mask: mask }) {
      if (lengths.length && !lengths.includes(ids.length)) throw new Error(`${ids.length} tokens`);
      const real = ids.filter((_, i) => mask[i]);
      const row = state.rows.find((one) => one.ids.join() === real.join());
      const mean = real.reduce((a, b) => a + b, 0) / real.length;
      const masks = list.task === "fill-mask" && real.includes(state.mask);
      const read = ids.map((_, i) => i).filter((i) => mask[i] && (!masks || ids[i] === state.mask));
      const number = (token, k, c) => (state.recorded ? ((columns[c][0] ? ids[token] : mean) / 100 + c) * columns[c][1] + wrong(c) : row.values[k * columns.length + c]);
      return Object.fromEntries(outputsOf(list, columns.length).map(([name, first, width]) => {
        const [perToken] = columns[first];
        const data = new Float32Array((perToken ? ids.length : 1) * width).fill(99);
        (perToken ? read : [0]).forEach((token, k) => {
          for (let c = 0; c < width; c++) data[token * width + c] = number(token, k, first + c);
        });
        const wide = list.task === "question-answering" ? [] : [width];
        return [name, { shape: perToken ? [1, ids.length, ...wide] : [1, width], data }];
      }));
    },
  });
  return { engine, state };
}

/** Return the first place where two values differ; numbers by more than 1e-6. */
function differs(made, expected, where = "") {
  if (typeof expected === "number") return Math.abs(made - expected) <= 1e-6 ? null : `${where}: ${made} instead of ${expected}`;
  if (expected === null || typeof expected !== "object") return made === expected ? null : `${where}: ${JSON.stringify(made)} instead of ${JSON.stringify(expected)}`;
  if (Array.isArray(expected) && made?.length !== expected.length) return `${where}: ${made?.length} instead of ${expected.length}`;
  for (const key of Object.keys(expected)) {
    const found = differs(made?.[key], expected[key], `${where}/${key}`);
    if (found) return found;
  }
  return null;
}

/** Return a recorded answer in the package's form: scores by label. */
function expectedOf({ unknown, scores, ...answer }, labels, heads) {
  for (const name of Object.keys(heads ?? {})) answer[name] = expectedOf(answer[name], labels.filter((label) => label.startsWith(`${name}: `)).map((label) => label.slice(name.length + 2)));
  return scores ? { ...answer, scores: Object.fromEntries(labels.map((label, i) => [label, scores[i]])) } : answer;
}

async function answers() {
  for (const kit of readdirSync(root).filter((name) => !name.includes("."))) {
    const folder = path.join(root, kit);
    const list = JSON.parse(readFileSync(path.join(folder, "artifacts.json"), "utf8"));
    const cases = lines(path.join(folder, "cases.jsonl"));
    const { tokens, columns, mask_id: mask } = JSON.parse(readFileSync(path.join(folder, "tokens.json"), "utf8"));
    const found = [];
    for (const [number, file] of list.files.filter((one) => one.kind === "model").map((one) => one.path).entries()) {
      const { engine, state } = fakeEngine(list, columns, { lengths: number ? [12, 24] : [] });
      state.mask = mask;
      const model = await load(reader(folder), { file, engine });
      state.recorded = false;
      for (const one of cases) {
        const input = one.input[1] === null ? one.input[0] : one.input;
        state.rows = one.rows;
        const [made] = await model.predict([input]);
        if (one.answer.unknown !== undefined) found.push(differs(Boolean(made.unknown), one.unknown[file], `${file} ${input}: unknown`));
        if (number) continue; // other temperatures
        found.push(differs(made, expectedOf(one.answer, list.labels, list.heads), String(input)));
        if (list.heads && Object.keys(made).sort().join() !== [...Object.keys(list.heads), "truncated"].sort().join()) found.push(`${Object.keys(made)}`);
      }
      tokens.forEach(([token, text], id) => found.push(differs([model.tokenizer.token(id), model.tokenizer.decode(id)], [token, text], `token ${id}`)));
    }
    say([kit, cases.length, found.filter(Boolean).slice(0, 3)]);
  }
}

async function refusals() {
  const read = (folder, name) => JSON.parse(readFileSync(path.join(folder, name), "utf8"));
  let folder = path.join(root, "prompts");
  const list = () => read(folder, "artifacts.json");
  const edited = (change) => ({ "artifacts.json": () => {
    const content = list();
    change(content);
    return new TextEncoder().encode(JSON.stringify(content));
  } });
  const attempt = async (name, changed, options, use = () => {}) => {
    const small = (column) => (list().labels[column].startsWith("mood: ") ? 0.005 : 0);
    const wrong = { "wrong engine": () => 0.02, "wrong head": small }[name];
    const { engine } = fakeEngine(list(), read(folder, "tokens.json").columns, { wrong });
    const said = await load(reader(folder, changed), { engine, ...options }).then(use).then(() => "accepted", (error) => error.message);
    say([name, said]);
  };
  await attempt("good", {}, {});
  await attempt("wrong engine", {}, {});
  await attempt("wrong engine", {}, { selfTest: false });
  await attempt("changed file", { "onnx/model.onnx": () => new Uint8Array(readFileSync(path.join(folder, "onnx/model.onnx"))).fill(1) }, {});
  await attempt("shorter file", { "tokenizer.json": () => new Uint8Array(3) }, {});
  await attempt("schema", edited((content) => (content.schema_version = "2.0")), {});
  await attempt("path", edited((content) => (content.files[0].path = "../x")), {});
  await attempt("form", edited((content) => (content.form = "entities")), {});
  await attempt("failed", edited((content) => content.files.forEach((file) => (file.status &&= "failed"))), {});
  await attempt("scheme", {}, { scheme: "w4" });
  await attempt("file", {}, { file: "onnx/other.onnx" });
  await attempt("no folder", { "artifacts.json": () => { throw new Error("404"); } }, {});
  await attempt("prompt", {}, {}, (model) => model.predict(["a"], { prompt: "passage" }));
  await attempt("pair", {}, {}, (model) => model.predict([["a", "b"]]));
  await attempt("number", {}, {}, (model) => model.predict([3]));
  await attempt("single", {}, {}, (model) => model.predict([["a"]]));
  await attempt("inherited", {}, {}, (model) => model.predict(["a"], { prompt: "constructor" }));
  folder = path.join(root, "slots-and-intent");
  await attempt("several heads", {}, {});
  await attempt("wrong head", {}, {}); // half of what is allowed of all numbers
  await attempt("pair", {}, {}, (model) => model.predict([["a", "b"]]));
  await attempt("heads", edited((content) => delete content.heads.mood), {});
  await attempt("heads", edited((content) => (content.heads.mood = "text-classification")), {});
  await attempt("labels", edited((content) => (content.labels = content.labels.filter((label) => !label.startsWith("mood")))), {});
  folder = path.join(root, "prompts");
  const other = list();
  other.files.find((file) => file.kind === "model").path = " //other.host/x";
  globalThis.fetch = async (address) => {
    const name = new URL(address).pathname.slice("/f/".length);
    const body = name === "artifacts.json" ? JSON.stringify(other) : name.includes("other") ? null : readFileSync(path.join(folder, name));
    return body === null ? new Response("", { status: 404 }) : new Response(body);
  };
  const said = await load("http://own.host/f", { engine: fakeEngine(other, read(folder, "tokens.json").columns).engine, file: " //other.host/x" }).catch((error) => error.message);
  say(["other host", said]);
}

function tokens() {
  const texts = lines(path.join(root, "strings.jsonl"));
  for (const kind of readdirSync(root).filter((name) => !name.includes("."))) {
    const tokenizer = new Tokenizer(JSON.parse(readFileSync(path.join(root, kind, "tokenizer.json"), "utf8")));
    const rows = lines(path.join(root, kind, "rows.jsonl"));
    const wrong = rows.filter(({ texts: numbers, most, left, stride, encodings }) => {
      const [first, second = null] = numbers.map((number) => texts[number]);
      const made = stride === undefined ? [tokenizer.encode(first, second, { maxLength: most, keepsEnd: left })] : tokenizer.windows(first, second, most, stride);
      return JSON.stringify(made.map((e) => [e.ids, e.typeIds, e.starts, e.ends, e.words, e.parts, e.truncated])) !== JSON.stringify(encodings);
    });
    say([kind, rows.length, wrong.length, wrong.length ? wrong[0].texts.map((number) => texts[number]) : []]);
  }
}

/** For each kind of processor, and for the settings with which the engine opens no file: the settings of the session. */
async function sessions() {
  const { openSession } = await import(pathToFileURL(path.join(home, "src/engines.js")));
  for (const [arch, cpu] of [["arm64", ""], ["x64", "flags : avx2 avx_vnni"], ["x64", "flags : avx2"], ["x64", null]]) {
    Object.defineProperty(process, "arch", { value: arch });
    promises.readFile = async () => cpu ?? Promise.reject(new Error("no such file"));
    syncBuiltinESMExports();
    for (const refused of [[], ['{"x64quantprecision":"1"}'], ['{"x64quantprecision":"1"}', '{"x64quantprecision":"1","disable_quant_qdq":"1"}']]) {
      let opened;
      const create = async (bytes, { extra }) => {
        opened = JSON.stringify(extra?.session ?? {});
        if (refused.includes(opened)) throw new Error("refused");
        return { inputNames: [] };
      };
      const ort = { listSupportedBackends: () => [], env: {}, InferenceSession: { create } };
      await openSession(new Uint8Array(1), { format: "onnx" }, { ort });
      say([arch, cpu, JSON.parse(opened)]);
    }
  }
}

await { answers, refusals, tokens, sessions }[command]();
