// From the outputs of a file to answers, as the heads of the Python runtime make them. `listHeads` says which heads a folder has,
// `readMatrix` puts their outputs side by side, `makeHead` turns them into answers.

import { PUNCTUATION } from "./unicode.js";

/** @typedef {{ rows: number, columns: number, data: Float64Array | Float32Array }} Matrix */
/** @typedef {import("./tokenizer.js").Encoding} Encoding */
/**
 * A head of a model; `name` is empty where the model has one. `start` is its first column in the outputs of all heads, `width` the
 * number of its columns (null: not fixed by the folder), `outputs` the names of its outputs in the file.
 * @typedef {{ name: string, task: string, labels: string[], score: string, thresholds: number[], outputs: string[], start: number, width: number | null }} NamedHead
 */

/** Names of the mask token in the vocabularies of the families. */
export const MASK_TOKENS = ["[MASK]", "<mask>", "<special1>"];
const GUESSES = 10;
/** Outputs that answers are made from, by task; of other tasks `logits`. */
const OUTPUTS = { "question-answering": ["start_logits", "end_logits"], "feature-extraction": ["sentence_embedding"] };
/** Tasks whose outputs have a row for each token. */
const TOKEN_TASKS = ["token-classification", "question-answering", "fill-mask"];
const LABEL_TASKS = ["text-classification", "multi-label", "token-classification"];
/** Tasks that one of several heads can have, with what turns its logits into scores. */
const HEAD_SCORES = { "text-classification": "softmax", "multi-label": "sigmoid", regression: "none", "token-classification": "softmax" };
const [FEWEST_HEADS, MOST_HEADS] = [2, 16];
const BEGIN = /^[BS]-/;
const INSIDE = /^[IE]-/;
/** Least scale of logits as a share of the largest, as Python's `logit_scale` has it. */
const LEAST_SCALE = 0.1;

const rowOf = (matrix, i) => matrix.data.subarray(i * matrix.columns, (i + 1) * matrix.columns);

/** Return the softmax of numbers. */
export function softmax(values) {
  const largest = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = Array.from(values, (value) => Math.exp(value - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

const sigmoid = (value) => 1 / (1 + Math.exp(-Math.min(Math.max(value, -700), 700)));

/** Return the probabilities of a row of logits. */
function scoresOf(values, score) {
  return score === "softmax" ? softmax(values) : score === "sigmoid" ? Array.from(values, sigmoid) : Array.from(values);
}

/** Return the index of the largest number, the first of equal ones. */
function best(values) {
  let at = 0;
  values.forEach((value, i) => {
    if (value > values[at]) at = i;
  });
  return at;
}

/** Return the characters of a text from one code point to another. */
const excerpt = (text, start, end) => Array.from(text).slice(start, end).join("");

/** Divide logits by a temperature; probabilities (`inside`) become those of the divided logits. @returns {Matrix} */
export function applyTemperature(matrix, temperature, inside) {
  if (temperature === 1) return matrix;
  const logits = Float64Array.from(matrix.data, (value) => (inside ? Math.log(Math.max(value, 1e-38)) : value) / temperature);
  if (!inside) return { ...matrix, data: logits };
  const scaled = { ...matrix, data: logits };
  const rows = Array.from({ length: matrix.rows }, (_, i) => softmax(rowOf(scaled, i)));
  return { ...matrix, data: Float64Array.from(rows.flat()) };
}

/**
 * Return the heads of a folder, in order of their columns: the only one, or each of several with its own labels.
 * @param {any} list The content of artifacts.json.
 * @returns {NamedHead[]}
 */
export function listHeads({ task, labels, heads, processing }) {
  if (task !== "several") {
    const width = LABEL_TASKS.includes(task) ? labels.length : ["regression", "multiple-choice"].includes(task) ? 1 : null;
    return [{ name: "", task, labels, score: processing.score, thresholds: processing.thresholds ?? [], outputs: OUTPUTS[task] ?? ["logits"], start: 0, width }];
  }
  const named = Object.entries(heads ?? {}).map(([name, own]) => {
    const isOwn = (label) => label.startsWith(`${name}: `);
    const names = labels.filter(isOwn).map((label) => label.slice(name.length + 2));
    return { name, task: own, labels: names, score: Object.hasOwn(HEAD_SCORES, own) ? HEAD_SCORES[own] : null, thresholds: [], outputs: [`${name}_logits`], start: labels.findIndex(isOwn), width: names.length };
  });
  named.sort((a, b) => a.start - b.start);
  const fits = (head) => head.score && (head.task === "regression" ? head.width === 1 : head.width > 0);
  const stop = named.reduce((column, head) => (fits(head) && head.start === column ? column + head.width : NaN), 0);
  if (named.length < FEWEST_HEADS || named.length > MOST_HEADS || stop !== labels.length) throw new Error(`artifacts.json: its heads (${named.map((head) => head.name).join(", ")}) do not fit the labels. Copy the folder again.`);
  return named;
}

/** Return a matrix with the columns of one head only. @returns {Matrix} */
function columnsOf(matrix, { start, width }) {
  if (width === null || width === matrix.columns) return matrix;
  const rows = Array.from({ length: matrix.rows }, (_, i) => rowOf(matrix, i).subarray(start, start + width));
  const data = new Float64Array(matrix.rows * width);
  rows.forEach((row, i) => data.set(row, i * width));
  return { rows: matrix.rows, columns: width, data };
}

/**
 * Return the share of a recorded tolerance that is allowed in each column: all of it, or of several heads that of the head. A tolerance is
 * recorded for the spread of all logits together; a head whose logits differ less has as much less of it.
 * @param {Matrix[]} matrices The recorded outputs of the original model, all rows of the folder.
 * @param {NamedHead[]} heads
 */
export function toleranceShares(matrices, heads) {
  const scale = (start, width) => {
    const columns = Array.from({ length: width }, (_, c) => matrices.flatMap(({ rows, columns: wide, data }) => Array.from({ length: rows }, (_row, i) => data[i * wide + start + c])));
    const spreads = columns.map((values) => {
      const mean = values.reduce((a, b) => a + b, 0) / values.length;
      return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
    });
    const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);
    return Math.max(most(spreads), LEAST_SCALE * most(columns.flat().map(Math.abs)), 1e-6);
  };
  const wide = matrices[0]?.columns ?? 0;
  if (heads.length === 1) return Array(wide).fill(1);
  const whole = scale(0, wide);
  return heads.flatMap(({ start, width }) => Array(width).fill(scale(start, width) / whole));
}

/**
 * Return what an example becomes: the rows that the model reads, and the answer of these rows' outputs, of several heads an answer of each
 * by its name. `prepare(input, tokenize)` returns encodings; `answer(input, encodings, matrices, inside)` the answer, where `inside` says
 * that the file computed probabilities itself.
 * @param {any} list The content of artifacts.json.
 * @param {NamedHead[]} heads
 * @param {import("./tokenizer.js").Tokenizer} tokenizer
 */
export function makeHead(list, heads, tokenizer) {
  const unknown = heads.find((head) => !Object.hasOwn(ANSWERS, head.task));
  if (unknown) throw new Error(`artifacts.json: the task '${unknown.task}' is not known.`);
  const rows = {
    "question-answering": ([question, context]) => tokenizer.windows(question, context, list.maxLength, list.processing.stride ?? 0),
    "multiple-choice": ([question, choices], tokenize) => choices.map((choice) => tokenize([question, choice])),
  };
  const answer = (input, encodings, matrices, inside) => {
    const answers = heads.map((head) => {
      const own = matrices.map((matrix) => columnsOf(matrix, head));
      const scores = () => (inside ? Array.from(rowOf(own[0], 0)) : scoresOf(rowOf(own[0], 0), head.score));
      return ANSWERS[head.task]({ input, encodings, matrices: own, scores, head, tokenizer, processing: list.processing });
    });
    if (!heads[0].name) return answers[0];
    return { ...Object.fromEntries(heads.map((head, i) => [head.name, answers[i]])), truncated: answers.some((one) => one.truncated) };
  };
  return { prepare: rows[list.task] ?? ((input, tokenize) => [tokenize(input)]), answer };
}

const named = (labels, scores) => Object.fromEntries(labels.map((label, i) => [label, scores[i]]));

/** The answer of a head to one example, by task; `scores()` are those of a text's only row. */
const ANSWERS = {
  "text-classification": ({ encodings, scores, head: { labels } }) => {
    const all = scores();
    const at = best(all);
    return { label: labels[at], score: all[at], scores: named(labels, all), truncated: encodings[0].truncated, unknown: null };
  },
  "multi-label": ({ encodings, scores, head: { labels, thresholds } }) => {
    const all = scores();
    const order = labels.map((_label, i) => i).sort((a, b) => all[b] - all[a]);
    const given = order.filter((i) => all[i] >= (thresholds[i] ?? 0.5));
    return { labels: given.map((i) => labels[i]), scores: named(labels, all), truncated: encodings[0].truncated };
  },
  regression: ({ encodings, scores }) => ({ value: scores()[0], truncated: encodings[0].truncated }),
  "token-classification": ({ input, encodings: [encoded], matrices, head, processing }) => {
    const words = findWords(input, encoded, processing.splits_punctuation === true);
    return { spans: findSpans(input, words, matrices[0], head.labels, head.score), truncated: encoded.truncated };
  },
  "question-answering": ({ input: [, context], encodings, matrices, processing }) => findAnswer(context, encodings, matrices, processing),
  "multiple-choice": ({ input: [, choices], encodings, matrices }) => {
    const numbers = matrices.map((matrix) => matrix.data[0]);
    const scores = softmax(numbers);
    const index = best(scores);
    return { index, text: choices[index], score: scores[index], scores, numbers, choices, truncated: encodings.some((row) => row.truncated) };
  },
  "fill-mask": ({ encodings: [encoded], matrices, head, tokenizer }) => ({ places: fillMasks(encoded, matrices[0], tokenizer, head.score), truncated: encoded.truncated }),
  "feature-extraction": ({ encodings, matrices }) => ({ vector: Float32Array.from(rowOf(matrices[0], 0)), truncated: encodings[0].truncated }),
};

/** Return a place moved over the blanks before a word, which some tokenizers count to the word's first token. */
function afterBlanks(characters, start, end) {
  while (start < end && !characters[start].trim()) start++;
  return start;
}

/**
 * Return the index of each word's first token, and its place in the text. With `splitsPunctuation` a word also begins at a token that
 * begins with punctuation or follows it.
 */
function findWords(text, { words, starts, ends }, splitsPunctuation) {
  const out = [];
  const characters = Array.from(text);
  let [last, lastEnd] = [-1, 0];
  words.forEach((word, i) => {
    const start = afterBlanks(characters, starts[i], ends[i]);
    const isBehind = lastEnd <= start && start < ends[i];
    const begins = splitsPunctuation && isBehind && characters.slice(Math.max(start - 1, 0), start + 1).some((c) => PUNCTUATION.has(c.codePointAt(0)));
    if (word >= 0 && word === last && !begins) out[out.length - 1].end = ends[i];
    else if (word >= 0) out.push({ token: i, start, end: ends[i] });
    [last, lastEnd] = [word, ends[i]];
  });
  return out.filter(({ start, end }) => start < end); // what some tokenizers split off of several blanks is no word
}

/** Return the labelled spans of a text; the first token of a word decides its tag. */
function findSpans(text, found, matrix, labels, score) {
  const labelOf = (tag) => (tag === "O" ? null : BEGIN.test(tag) || INSIDE.test(tag) ? tag.slice(2) : tag);
  const single = !labels.some((tag) => BEGIN.test(tag) || INSIDE.test(tag));
  const words = found.map((word) => {
    const scores = scoresOf(rowOf(matrix, word.token), score);
    const at = best(scores);
    return { ...word, tag: labels[at], score: scores[at] };
  });
  const spans = [];
  let open = null;
  for (const { tag, start, end } of words) {
    const label = labelOf(tag);
    const begins = BEGIN.test(tag);
    if (single) {
      if (tag !== "O" && start < end) spans.push({ start, end, label: tag });
    } else if (label !== null && label === open && !begins) spans[spans.length - 1].end = end;
    else {
      open = label !== null && (begins || !INSIDE.test(tag)) ? label : null;
      if (open !== null) spans.push({ start, end, label });
    }
  }
  return spans.map((span) => {
    const own = words.filter((word) => span.start <= word.start && word.start < span.end && labelOf(word.tag) === span.label);
    return { ...span, text: excerpt(text, span.start, span.end), score: own.reduce((sum, word) => sum + word.score, 0) / own.length };
  });
}

/** Return the best answer over all windows of a context; an empty one if the model finds none. */
function findAnswer(context, windows, matrices, processing) {
  const found = windows.map((window, i) => bestInWindow(window, matrices[i], processing.answer_length));
  const top = found.reduce((a, b) => (b.score > a.score ? b : a));
  if (processing.null_answers && Math.min(...found.map((one) => one.nullScore)) > top.score) return { text: "", start: 0, end: 0, score: top.probability, truncated: false };
  const start = afterBlanks(Array.from(context), top.start, top.end);
  return { text: excerpt(context, start, top.end), start, end: top.end, score: top.probability, truncated: false };
}

/** Return the span of context tokens with the largest sum of start and end logits, not longer than allowed. */
function bestInWindow(window, matrix, longest) {
  const tokens = window.parts.flatMap((part, i) => (part === 1 ? [i] : []));
  const start = (i) => matrix.data[2 * i];
  const end = (i) => matrix.data[2 * i + 1];
  const nullScore = Math.fround(start(0) + end(0));
  let top = { score: -3.4028234663852886e38, start: 0, end: 0, probability: 0, nullScore };
  let found = null;
  tokens.forEach((first, a) => {
    for (let b = a; b < Math.min(tokens.length, a + longest); b++) {
      const score = start(first) + end(tokens[b]);
      if (!found || score > found.score) found = { score, first, last: tokens[b] };
    }
  });
  if (!found) return top;
  const column = (offset) => Array.from({ length: matrix.rows }, (_, i) => matrix.data[2 * i + offset]);
  const probability = Math.fround(softmax(column(0))[found.first] * softmax(column(1))[found.last]);
  top = { score: Math.fround(found.score), start: window.starts[found.first], end: window.ends[found.last], probability, nullScore };
  return top;
}

/** Return the most probable tokens for each mask; without a mask, none. */
function fillMasks(encoded, matrix, tokenizer, score) {
  if (!encoded.ids.includes(maskId(tokenizer))) return [];
  return Array.from({ length: matrix.rows }, (_, i) => {
    const scores = scoresOf(rowOf(matrix, i), score);
    const order = scores.map((_score, id) => id).sort((a, b) => scores[b] - scores[a]);
    return order.slice(0, GUESSES).map((id) => ({ token: tokenizer.token(id), text: tokenizer.decode(id), score: scores[id] }));
  });
}

/** Return the id of the mask token; undefined where the vocabulary has none. */
export function maskId(tokenizer) {
  return MASK_TOKENS.map((token) => tokenizer.id(token)).find((id) => id !== undefined);
}

/**
 * Return the rows of a file's outputs that count, those of all heads side by side: one row for a text, or one per token (of fill-mask: per
 * masked one), in which heads on whole texts have the same numbers everywhere.
 * @param {Record<string, import("./engines.js").Output>} outputs
 * @param {NamedHead[]} heads
 * @param {number[]} ids Of the text, without padding.
 * @param {number} from The first token behind the padding.
 * @param {number | undefined} masked Id of the mask token.
 * @returns {Matrix}
 */
export function readMatrix(outputs, heads, ids, from, masked) {
  const parts = heads.flatMap((head) => partsOf(outputs, head));
  const kept = ids.map((_, i) => i).filter((i) => heads[0].task !== "fill-mask" || ids[i] === masked);
  const tokens = parts.some((part) => part.perToken) ? (kept.length ? kept : ids.map((_, i) => i)) : [0];
  const columns = parts.reduce((sum, part) => sum + part.columns, 0);
  const data = new Float32Array(tokens.length * columns);
  let offset = 0;
  for (const part of parts) {
    tokens.forEach((token, i) => {
      const at = part.perToken ? (from + token) * part.columns : 0;
      data.set(part.data.subarray(at, at + part.columns), i * columns + offset);
    });
    offset += part.columns;
  }
  return { rows: tokens.length, columns, data };
}

/** Return the outputs of a file that belong to a head, each with the number of its columns; refuse a file of another task or number of labels. */
function partsOf(outputs, head) {
  const names = outputs.probabilities && !head.name ? ["probabilities"] : head.outputs;
  const missing = names.find((name) => !outputs[name]);
  if (missing) throw new Error(`the file gives ${Object.keys(outputs).join(", ")}; ${head.task} needs ${missing}: a file of another task?`);
  const perToken = TOKEN_TASKS.includes(head.task);
  const parts = names.map((name) => {
    const { shape, data } = outputs[name];
    return { data, perToken, columns: perToken && shape.length < 3 ? 1 : shape[shape.length - 1] }; // start and end logits: [1, tokens]
  });
  const columns = parts.reduce((sum, part) => sum + part.columns, 0);
  if (head.width !== null && columns !== head.width) throw new Error(`${names.join(", ")}: ${columns} numbers, the folder says ${head.width}. Copy the folder again.`);
  return parts;
}

/** Return how alike two vectors are; the larger, the more. */
export function similarity(one, other, kind = "cosine") {
  const sum = (term) => one.reduce((total, value, i) => total + term(value, other[i]), 0);
  const length = (vector) => Math.max(Math.sqrt(vector.reduce((total, value) => total + value * value, 0)), 1e-12);
  if (kind === "dot") return sum((a, b) => a * b);
  if (kind === "euclidean") return -Math.sqrt(sum((a, b) => (a - b) ** 2));
  if (kind === "manhattan") return -sum((a, b) => Math.abs(a - b));
  return sum((a, b) => a * b) / (length(one) * length(other));
}
