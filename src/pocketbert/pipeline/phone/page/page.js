// The page that `pocketbert pack --for web-demo` writes: one folder's files answer what is typed, each with its latency.
import { load } from "./runtime/index.js";

const element = (id) => document.getElementById(id);
const LIBRARIES = {
  tflite: { litertWasm: "lib/core/wasm/", threads: 1 },
  onnx: { ortWasm: "lib/onnxruntime-web/dist/", threads: 1 },
};
const LATENCIES = 9; // the median of so many calls is shown
const SHOWN = 5;
const CLAIM_MS = 10000; // time that a new service worker has to take over the page
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

/** Make an element with attributes and children, which are elements or text. */
function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// --- what is asked ---------------------------------------------------------------------------------------------------------------

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** Return the fields of the form by task: name, label, rows of the box, and the text to begin with. */
function fieldsOf(list, rows) {
  const texts = rows.map((row) => [row.text].flat());
  const [first = "", second = ""] = texts[0] ?? [];
  const others = texts.map((row) => row[0]).join("\n");
  if (list.task === "question-answering") return [["first", "Question", 1, first], ["second", "Text that holds the answer", 6, second]];
  if (list.task === "multiple-choice") return [["first", "Question", 2, first], ["second", "Choices, one on each line", 4, texts.map((row) => row[1] ?? "").join("\n")]];
  if (list.task === "feature-extraction") return [["first", "Text", 2, first], ["second", "Texts to compare with, one on each line", 6, others]];
  if (list.pair) return [["first", "Text", 2, first], ["second", "Second text", 2, second]];
  const masked = list.task === "fill-mask" ? "Text with masks" : "Text";
  return [["first", masked, 3, first]];
}

function readForm(list) {
  const [first, second] = ["first", "second"].map((name) => element(name)?.value ?? "");
  const prompt = element("prompt")?.value;
  return { first, second, prompt, input: list.task === "multiple-choice" ? [first, lines(second)] : list.pair || list.task === "question-answering" ? [first, second] : first };
}

function buildForm(list, rows) {
  const form = element("form");
  for (const [name, label, height, text] of fieldsOf(list, rows)) {
    const box = make("textarea", { id: name, rows: height, spellcheck: "false" });
    box.value = text;
    form.append(make("label", { for: name }, label), box);
  }
  const prompts = Object.keys(list.processing.prompts ?? {});
  if (prompts.length) {
    const choice = make("select", { id: "prompt" }, make("option", { value: "" }, "none"), ...prompts.map((name) => make("option", { value: name }, name)));
    choice.value = list.processing.default_prompt ?? "";
    form.append(make("label", { for: "prompt" }, "Prompt in front of the text"), choice);
  }
  form.addEventListener("submit", (event) => event.preventDefault());
}

// --- what is answered ------------------------------------------------------------------------------------------------------------

/** A list of names with their shares, the largest first. */
function ranked(pairs, shown = (share) => percent(share), bars = true) {
  const items = pairs.map(([name, share]) => {
    const item = make("li", {}, `${name} `, make("span", { class: "share" }, shown(share)));
    if (bars) {
      const bar = make("span", { class: "bar", "aria-hidden": "true" });
      bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
      item.append(bar);
    }
    return item;
  });
  return make("ol", {}, ...items);
}

/** A text with pieces of it marked. */
function marked(text, pieces) {
  const letters = Array.from(text);
  const out = [];
  let read = 0;
  for (const { start, end, note } of pieces) {
    out.push(letters.slice(read, start).join(""), make("mark", {}, letters.slice(start, end).join(""), ...(note ? [make("small", {}, ` ${note}`)] : [])));
    read = end;
  }
  return [...out, letters.slice(read).join("")];
}

const largest = (scores) => Object.entries(scores).sort((a, b) => b[1] - a[1]).slice(0, SHOWN);

const SHOW = {
  "text-classification": ({ answer }) => [...(answer.unknown ? [make("strong", {}, "unknown: below this file's threshold")] : []), ranked(largest(answer.scores))],
  "multi-label": ({ answer }) => [answer.labels.length ? ranked(answer.labels.map((label) => [label, answer.scores[label]])) : "no label reaches its threshold"],
  regression: ({ answer }) => [make("strong", {}, answer.value.toFixed(4))],
  "token-classification": ({ answer, first }) => (answer.spans.length ? marked(first, answer.spans.map((span) => ({ ...span, note: `${span.label} ${percent(span.score)}` }))) : [first, make("p", {}, "nothing found")]),
  "question-answering": ({ answer, second }) => (answer.text ? marked(second, [{ ...answer, note: percent(answer.score) }]) : ["no answer in the text"]),
  "multiple-choice": ({ answer }) => [ranked(answer.choices.map((choice, i) => [choice, answer.scores[i]]).sort((a, b) => b[1] - a[1]))],
  "fill-mask": ({ answer }) => (answer.places.length ? answer.places.map((place) => ranked(place.slice(0, SHOWN).map((guess) => [guess.text, guess.score]))) : ["no mask in the text"]),
  "feature-extraction": ({ answer }) => [ranked(answer.map((one) => [one.text, one.score]), (score) => score.toFixed(4))],
};

/** Return what is shown of an answer: of several heads a part for each, under its name. */
function blocksOf({ heads, task }, asked, answer) {
  if (!heads) return SHOW[task]({ answer, ...asked });
  return Object.entries(heads).map(([name, own]) => make("div", { "data-head": name }, make("h3", {}, name), make("div", {}, ...SHOW[own]({ answer: answer[name], ...asked }))));
}

/** Ask one open file; show the answer and the latency, unless something else is asked by then (`isCurrent`). */
async function ask(file, list, asked, isCurrent) {
  const begin = performance.now();
  const options = { prompt: asked.prompt };
  try {
    const answer = list.task === "feature-extraction" ? await file.model.rank(asked.first, lines(asked.second), options) : (await file.model.predict([asked.input], options))[0];
    if (!isCurrent()) return;
    file.latencies = [...file.latencies, performance.now() - begin].slice(-LATENCIES);
    file.answer.replaceChildren(...blocksOf(file.model, asked, answer), ...(answer.truncated ? [make("p", {}, "The text is too long; a part of it was not read.")] : []));
    file.latency.textContent = `${median(file.latencies).toFixed(1)} ms (median of ${file.latencies.length}, with tokenization)`;
  } catch (error) {
    if (isCurrent()) file.answer.replaceChildren(make("p", { class: "bad" }, error.message));
  }
}

// --- the files -------------------------------------------------------------------------------------------------------------------

/** Make the box of a model file; its button opens the file. */
function buildFile(record, index) {
  const title = `${record.path}`;
  const box = make("article", { "aria-labelledby": `file-${index}`, "data-file": record.path });
  const facts = make("p", {}, `${record.scheme}, ${megabytes(record.bytes)}`);
  const button = make("button", { type: "button", "aria-describedby": `file-${index}` }, `Open (${megabytes(record.bytes)})`);
  const [latency, answer] = [make("p", {}), make("div", { class: "answer" })];
  box.append(make("h2", { id: `file-${index}` }, title), facts, button, latency, answer);
  element("files").append(box);
  return { record, box, facts, button, latency, answer, latencies: [], model: null };
}

async function open(file) {
  file.button.disabled = true;
  file.button.textContent = "Opening …";
  const begin = performance.now();
  try {
    const { format, path } = file.record;
    const ort = format === "onnx" ? await import("./lib/onnxruntime-web/dist/ort.wasm.bundle.min.mjs") : undefined;
    file.model = await load(new URL("./", document.baseURI), { file: path, ort, ...LIBRARIES[format] });
    file.facts.textContent = `${file.record.scheme}, ${megabytes(file.record.bytes)}, ${file.model.engine}, opened and tested in ${Math.round(performance.now() - begin)} ms`;
    file.button.remove();
  } catch (error) {
    file.button.textContent = "Try again";
    file.button.disabled = false;
    file.answer.replaceChildren(make("p", { class: "bad" }, error.message));
  }
}

/** Return what a screen reader hears of an answer: what was found in the text, the first of a list, or the text; of several heads that of each. */
function summary(box) {
  const parts = [...box.querySelectorAll("[data-head]")];
  if (parts.length) return parts.map((part) => `${part.dataset.head}: ${summary(part.lastElementChild)}`).join("; ");
  const marks = [...box.querySelectorAll("mark")].map((mark) => mark.textContent);
  const first = marks.length ? marks.join(", ") : (box.querySelector("li, strong") ?? box).textContent;
  return first.trim().slice(0, 120);
}

/** Keep the page and the files that were opened for use without a network; say what is so. */
async function keepOffline(files) {
  const say = (text) => (element("offline").textContent = text);
  if (!("serviceWorker" in navigator)) return say("This address is neither https nor localhost, so the browser does not keep the page for use without a network.");
  try {
    const claimed = new Promise((resolve) => navigator.serviceWorker.addEventListener("controllerchange", () => resolve(true), { once: true }));
    const registration = await navigator.serviceWorker.register("sw.js");
    const worker = registration.installing;
    const failed = new Promise((_, reject) => worker?.addEventListener("statechange", () => worker.state === "redundant" && reject(new Error("this server lacks a file of the folder, or the disk is full."))));
    const installed = Promise.race([navigator.serviceWorker.ready, failed]);
    failed.catch(() => {}); // a later version of the page replaces this one
    await installed;
    const late = new Promise((resolve) => setTimeout(resolve, CLAIM_MS, false));
    const controlled = navigator.serviceWorker.controller || (await Promise.race([claimed, late]));
    if (!controlled) return say("Reload the page to use it without a network."); // a forced reload goes past the service worker
    for (const file of files) if (file.model) await fetch(file.record.path); // opened before there was a worker to keep it
    return say("Works without a network, with the files that were opened.");
  } catch (error) {
    return say(`The browser did not keep the page for use without a network: ${error.message}`);
  }
}

async function start() {
  const json = async (path) => (await fetch(path)).json();
  const list = await json("artifacts.json");
  const rows = list.files.some((file) => file.path === "selftest.json") ? (await json("selftest.json")).rows : [];
  const records = list.files.filter((file) => file.kind === "model" && !file.alias_of && LIBRARIES[file.format]);
  const smallest = Math.min(...records.map((record) => record.bytes));
  const order = (record) => [record.bytes > 1.5 * smallest, record.format !== "tflite", record.bytes]; // LiteRT.js is the faster engine
  records.sort((a, b) => order(a).map((value, i) => value - order(b)[i]).find((difference) => difference !== 0) ?? 0);
  document.title = element("name").textContent = list.name;
  const does = list.heads ? Object.entries(list.heads).map(([name, task]) => `${name}: ${task}`).join(", ") : list.task;
  element("facts").textContent = `${does}, ${records.length} files; the first is opened at once, each larger one by its button.`;
  element("size").textContent = `Whole folder: ${megabytes(list.files.reduce((sum, file) => sum + file.bytes, 0))}.`;
  buildForm(list, rows);
  const files = records.map(buildFile);
  let turn = 0;
  const answerAll = async () => {
    const mine = ++turn;
    for (const file of files) if (file.model && mine === turn) await ask(file, list, readForm(list), () => mine === turn);
    const first = files.find((file) => file.model);
    if (mine === turn) element("state").textContent = first ? `Answer: ${summary(first.answer)}` : "";
  };
  let waiting = 0;
  element("form").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(answerAll, 150);
  });
  for (const file of files) {
    file.button.addEventListener("click", async () => {
      await open(file);
      await answerAll();
      file.box.setAttribute("data-open", String(Boolean(file.model)));
    });
  }
  element("state").textContent = `Loading ${records[0].path} (${megabytes(records[0].bytes)}) …`;
  await open(files[0]);
  const ready = performance.now();
  await answerAll();
  element("size").append(` Ready ${(ready / 1000).toFixed(1)} s after the page was opened.`);
  files[0].box.setAttribute("data-open", String(Boolean(files[0].model)));
  await keepOffline(files);
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  element("state").replaceChildren(make("span", { class: "bad" }, error.message));
  document.documentElement.dataset.ready = "failed";
});
