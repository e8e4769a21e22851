// From the outputs of a file to answers, task by task, as the heads of the Python runtime make them.

/** @typedef {{ rows: number, columns: number, data: Float64Array | Float32Array }} Matrix */
/** @typedef {import("./tokenizer.js").Encoding} Encoding */

/** Names of the mask token in the vocabularies of the families. */
export const MASK_TOKENS = ["[MASK]", "<mask>", "<special1>"];
const GUESSES = 10;
const BEGIN = /^[BS]-/;
const INSIDE = /^[IE]-/;

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
 * Return what an example of each task becomes: the rows that the model reads, and the answer of these rows' outputs.
 * `prepare(input, tokenize)` returns encodings; `answer(input, encodings, matrices)` the answer.
 * @param {any} list The content of artifacts.json.
 * @param {import("./tokenizer.js").Tokenizer} tokenizer
 */
export function makeHead(list, tokenizer) {
  const { labels, processing } = list;
  const named = (scores) => Object.fromEntries(labels.map((label, i) => [label, scores[i]]));
  const one = (input, tokenize) => [tokenize(input)];
  const scoresOfText = (matrix, inside) => (inside ? Array.from(rowOf(matrix, 0)) : scoresOf(rowOf(matrix, 0), processing.score));
  const heads = {
    "text-classification": {
      prepare: one,
      answer: (_, [encoded], [matrix], inside) => {
        const scores = scoresOfText(matrix, inside);
        const at = best(scores);
        return { label: labels[at], score: scores[at], scores: named(scores), truncated: encoded.truncated, unknown: null };
      },
    },
    "multi-label": {
      prepare: one,
      answer: (_, [encoded], [matrix], inside) => {
        const scores = scoresOfText(matrix, inside);
        const order = labels.map((_label, i) => i).sort((a, b) => scores[b] - scores[a]);
        const given = order.filter((i) => scores[i] >= (processing.thresholds?.[i] ?? 0.5));
        return { labels: given.map((i) => labels[i]), scores: named(scores), truncated: encoded.truncated };
      },
    },
    regression: {
      prepare: one,
      answer: (_, [encoded], [matrix], inside) => ({ value: scoresOfText(matrix, inside)[0], truncated: encoded.truncated }),
    },
    "token-classification": {
      prepare: one,
      answer: (input, [encoded], [matrix]) => ({ spans: findSpans(input, encoded, matrix, labels, processing.score), truncated: encoded.truncated }),
    },
    "question-answering": {
      prepare: ([question, context]) => tokenizer.windows(question, context, list.maxLength, processing.stride ?? 0),
      answer: ([, context], windows, matrices) => findAnswer(context, windows, matrices, processing),
    },
    "multiple-choice": {
      prepare: ([question, choices], tokenize) => choices.map((choice) => tokenize([question, choice])),
      answer: ([, choices], rows, matrices) => {
        const numbers = matrices.map((matrix) => matrix.data[0]);
        const scores = softmax(numbers);
        const index = best(scores);
        return { index, text: choices[index], score: scores[index], scores, numbers, choices, truncated: rows.some((row) => row.truncated) };
      },
    },
    "fill-mask": {
      prepare: one,
      answer: (_, [encoded], [matrix]) => ({ places: fillMasks(encoded, matrix, tokenizer, processing.score), truncated: encoded.truncated }),
    },
    "feature-extraction": {
      prepare: one,
      answer: (_, [encoded], [matrix]) => ({ vector: Float32Array.from(rowOf(matrix, 0)), truncated: encoded.truncated }),
    },
  };
  if (list.task === "several") throw new Error("artifacts.json: the folder has several heads, and this package shows one. Read the outputs by their names: README.md of the folder has code.");
  if (!heads[list.task]) throw new Error(`artifacts.json: the task '${list.task}' is not known.`);
  return heads[list.task];
}

/** Return the index of each word's first token, and its place in the text. */
function findWords({ words, starts, ends }) {
  const out = [];
  let last = -1;
  words.forEach((word, i) => {
    if (word >= 0 && word === last) out[out.length - 1].end = ends[i];
    else if (word >= 0) out.push({ token: i, start: starts[i], end: ends[i] });
    last = word;
  });
  return out;
}

/** Return the labelled spans of a text; the first token of a word decides its tag. */
function findSpans(text, encoded, matrix, labels, score) {
  const labelOf = (tag) => (tag === "O" ? null : BEGIN.test(tag) || INSIDE.test(tag) ? tag.slice(2) : tag);
  const single = !labels.some((tag) => BEGIN.test(tag) || INSIDE.test(tag));
  const words = findWords(encoded).map((word) => {
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
  return { text: excerpt(context, top.start, top.end), start: top.start, end: top.end, score: top.probability, truncated: false };
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

/** Return the rows of a file's outputs that count: one for a text, or one per token (of fill-mask: per masked one). @returns {Matrix} */
export function readMatrix(outputs, task, ids, from, masked) {
  const names = outputs.probabilities ? ["probabilities"] : { "question-answering": ["start_logits", "end_logits"], "feature-extraction": ["sentence_embedding"] }[task] ?? ["logits"];
  const missing = names.find((name) => !outputs[name]);
  if (missing) throw new Error(`the file gives ${Object.keys(outputs).join(", ")}; ${task} needs ${missing}: a file of another task?`);
  const { shape, data } = outputs[names[0]];
  if (task === "question-answering") {
    const pairs = ids.flatMap((_, i) => names.map((name) => outputs[name].data[from + i]));
    return { rows: ids.length, columns: 2, data: Float32Array.from(pairs) };
  }
  const columns = shape[shape.length - 1];
  if (task !== "token-classification" && task !== "fill-mask") return { rows: 1, columns, data: data.slice(0, columns) };
  const kept = ids.map((_, i) => i).filter((i) => task !== "fill-mask" || ids[i] === masked);
  const tokens = kept.length ? kept : ids.map((_, i) => i);
  const out = new Float32Array(tokens.length * columns);
  tokens.forEach((token, i) => out.set(data.subarray((from + token) * columns, (from + token + 1) * columns), i * columns));
  return { rows: tokens.length, columns, data: out };
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
