// Predict with an artefact folder in Node, with transformers.js.
//
// Install: npm i @huggingface/transformers@4.3.1
// Run:     node predict.mjs runs/demo/phone text-classification "turn the lights off please"
//          node predict.mjs phone question-answering "a question" "the text that holds the answer"
//          node predict.mjs phone multiple-choice "a question" "one choice" "another choice"
//
// Prints one line of JSON per text. Give the two texts of a pair, or a question and its context, one after the other; a multiple-choice
// model takes one question and then its choices.
import { readFile } from "node:fs/promises";
import path from "node:path";
import { parseArgs } from "node:util";
import { AutoModelForSequenceClassification, AutoTokenizer, env, pipeline, softmax } from "@huggingface/transformers";

// Set this before the first session, since ONNX Runtime reports to its vendor otherwise. transformers.js 4.3 sets it too.
process.env.ORT_DISABLE_TELEMETRY ??= "1";

const { values, positionals } = parseArgs({
  options: { dtype: { type: "string", default: "int8" } },
  allowPositionals: true,
});
const [folder, task, ...texts] = positionals;

function refuse(problem) {
  console.error(`${problem}\nUsage: node predict.mjs FOLDER TASK [--dtype int8|fp32] TEXT...`);
  process.exit(2);
}

if (!texts.length) refuse("A folder, a task and at least one text are needed.");
const listed = JSON.parse(
  await readFile(path.join(folder, "artifacts.json"), "utf8").catch(() => refuse(`${folder} is not an artefact folder.`)),
);
if (listed.task !== task) refuse(`${folder} is for ${listed.task}, not for ${task}.`);
const chooses = task === "multiple-choice";
if (chooses && texts.length < 3) refuse("A question and at least two choices are needed.");
const pairs = !chooses && (listed.pair || task === "question-answering");
if (pairs && texts.length % 2) refuse("Pairs are needed, but the number of texts is odd.");
let rows = pairs ? texts.flatMap((t, i) => (i % 2 ? [] : [[t, texts[i + 1]]])) : texts.map((t) => [t]);
if (chooses) rows = [[texts[0], texts.slice(1)]];

env.allowRemoteModels = false;
const whole = path.resolve(folder);
env.localModelPath = path.dirname(whole) + path.sep;
const name = path.basename(whole);
const options = { dtype: values.dtype };
// Without this setting int8 products saturate on x86 processors without VNNI. ONNX Runtime opens no int8 file with it in which layers share weights.
if (listed.family !== "albert") options.session_options = { extra: { session: { x64quantprecision: "1" } } };
const given = listed.processing;

// The text-classification pipeline takes no pairs, and for a regression it returns the softmax of one number, which is always 1.
const bare = chooses || task === "regression" || (pairs && task !== "question-answering");
const answer = bare ? await byModel() : await byPipeline();
for (const row of rows) console.log(JSON.stringify(await answer(...row)));

async function byPipeline() {
  const run = await pipeline(task === "multi-label" ? "text-classification" : task, name, options);
  switch (task) {
    case "text-classification":
      return (text) => run(text, { top_k: null });
    case "multi-label":
      return async (text) => reached(await run(text, { top_k: null }), run.model.config.label2id);
    case "token-classification": // returns tokens without offsets; the first token of a word decides
      return (text) => run(text, { ignore_labels: [] });
    case "feature-extraction": // without these options the pipeline returns the states of all tokens
      if (!["mean", "cls"].includes(given.pooling) || given.vector_layers?.length)
        return async (text) => (await run.model(run.tokenizer([text], { truncation: true }))).sentence_embedding.tolist()[0];
      return async (text) => (await run(text, { pooling: given.pooling, normalize: given.normalize })).tolist()[0];
    case "fill-mask":
    case "question-answering":
      return (...row) => run(...row);
    default:
      return refuse(`Unknown task '${task}'.`);
  }
}

async function byModel() {
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  const model = await AutoModelForSequenceClassification.from_pretrained(name, options);
  const { id2label, label2id } = model.config;
  if (chooses) {
    return async (question, choices) => {
      const inputs = choices.map((choice) => tokenizer(question, { text_pair: choice, truncation: true }));
      const scores = [];
      for (const input of inputs) scores.push((await model(input)).logits.data[0]);
      const score = softmax(scores);
      const best = score.indexOf(Math.max(...score));
      return { choice: choices[best], score: score[best] };
    };
  }
  return async (text, second) => {
    const { logits } = await model(tokenizer(text, { text_pair: second ?? null, truncation: true }));
    if (task === "regression") return logits.data[0];
    const sigmoid = (x) => 1 / (1 + Math.exp(-x));
    const scores = task === "multi-label" ? Array.from(logits.data, sigmoid) : softmax(logits.data);
    const named = Array.from(scores, (score, i) => ({ label: id2label[i], score })).sort((a, b) => b.score - a.score);
    return task === "multi-label" ? reached(named, label2id) : named;
  };
}

function reached(scores, label2id) {
  return scores.filter(({ label, score }) => score >= given.thresholds[label2id[label]]);
}
