// `load` opens an artefact folder and tests that this machine computes its file right; `Model.predict` answers texts.
import { MASK_TOKENS, applyTemperature, listHeads, makeHead, maskId, readMatrix, similarity, toleranceShares } from "./answers.js";
import { canOpen, openSession } from "./engines.js";
import { ArtefactError, openFolder } from "./folder.js";
import { Tokenizer } from "./tokenizer.js";

/** Rows of golden.jsonl that are run before a file is used. */
const ROWS = 4;

/**
 * Open an artefact folder for prediction; see index.d.ts for the options.
 * @param {string | URL | ((path: string) => Promise<Uint8Array>)} source
 * @param {import("../index.js").LoadOptions} [options]
 * @returns {Promise<Model>}
 */
export async function load(source, options = {}) {
  const folder = await openFolder(source);
  const record = folder.choose(options, options.engine ? () => true : canOpen);
  const { content, padId, tableRows } = await folder.describe();
  const tokenizer = new Tokenizer(content);
  if (tableRows !== undefined && tokenizer.largestId >= tableRows) throw new ArtefactError(`tokenizer.json: its largest token id is ${tokenizer.largestId}, the model has ${tableRows} rows: it belongs to another model. Copy the folder again.`);
  const wasm = record.format === "tflite" ? options.litertWasm : options.ortWasm;
  const session = await openSession(await folder.read(record.path), record, { ...options, wasm });
  const model = new Model(folder, record, session, tokenizer, padId);
  if (options.selfTest ?? true) {
    try {
      await model.selfTest();
    } catch (error) {
      await session.close();
      throw error;
    }
  }
  return model;
}

/** An artefact folder opened for prediction; `load` makes one. */
export class Model {
  #folder;
  #session;
  #heads;
  #head;
  #padId;
  #busy = Promise.resolve();

  constructor(folder, record, session, tokenizer, padId) {
    const { list } = folder;
    this.#folder = folder;
    this.#session = session;
    this.#padId = padId;
    this.record = record;
    this.tokenizer = tokenizer;
    this.task = list.task;
    this.file = record.path;
    this.engine = [session.name, session.version].filter(Boolean).join(" ");
    this.#heads = listHeads(list);
    this.labels = [...list.labels];
    this.heads = this.task === "several" ? Object.fromEntries(this.#heads.map((head) => [head.name, head.task])) : null;
    this.prompts = { ...(list.processing.prompts ?? {}) };
    this.maxLength = Math.min(list.processing.max_length, ...(session.lengths.length ? [Math.max(...session.lengths)] : []));
    this.maskToken = MASK_TOKENS.find((token) => tokenizer.id(token) !== undefined) ?? null;
    this.#head = makeHead({ ...list, maxLength: this.maxLength }, this.#heads, tokenizer);
    if (this.task === "fill-mask" && this.maskToken === null) throw new ArtefactError("fill-mask needs a mask token, the tokenizer has none.");
  }

  /** Answer each text: see the types of answers in index.d.ts. */
  async predict(texts, { prompt } = {}) {
    const inputs = (typeof texts === "string" ? [texts] : [...texts]).map((text, i) => checkInput(text, this.task, this.#heads, i + 1));
    const put = this.#promptText(prompt);
    const tokenize = (input) => this.#encode(input, put);
    const answers = [];
    for (const input of inputs) {
      const rows = this.#head.prepare(input, tokenize);
      const matrices = [];
      let inside = false;
      for (const row of rows) {
        const outputs = await this.#run(row);
        inside = Boolean(outputs.probabilities);
        matrices.push(applyTemperature(this.#read(outputs, row), this.record.confidence?.temperature ?? 1, inside));
      }
      answers.push(this.#mark(this.#head.answer(input, rows, matrices, inside)));
    }
    return answers;
  }

  /** Rank passages for a query: by a reranker's score of each pair, or by the similarity of vectors. */
  async rank(query, passages, { prompt, passagePrompt = prompt } = {}) {
    let scores;
    if (this.task === "feature-extraction") {
      const [asked] = await this.predict([query], { prompt });
      scores = (await this.predict(passages, { prompt: passagePrompt })).map((one) => this.similarity(asked.vector, one.vector));
    } else if (this.task === "regression") scores = (await this.predict(passages.map((passage) => [query, passage]))).map((one) => one.value);
    else throw new Error(`the model's task is ${this.task}; texts are ranked by embeddings (feature-extraction) or a reranker (regression).`);
    return scores.map((score, index) => ({ index, text: passages[index], score })).sort((a, b) => b.score - a.score);
  }

  /** Return how alike two vectors are, as the folder compares them; the larger, the more. */
  similarity(one, other) {
    return similarity(one, other, this.#folder.processing.similarity ?? "cosine");
  }

  /** Run recorded rows; throw where a token or an output is not as recorded. */
  async selfTest() {
    const { max_length, truncation_side } = this.#folder.processing;
    for (const [i, { text, ids, type_ids: typeIds, offsets }] of (await this.#folder.goldenTokens()).entries()) {
      const [first, second = null] = [text].flat();
      const made = this.tokenizer.encode(first, second, { maxLength: max_length, keepsEnd: truncation_side === "left" });
      const same = made.ids.join() === ids.join() && made.typeIds.join() === typeIds.join() && offsets.every(([start, end], k) => made.starts[k] === start && made.ends[k] === end);
      if (!same) throw new ArtefactError(`golden_tokens.jsonl: row ${i + 1} is tokenized otherwise here: a tokenizer.json of another model? Copy the folder again.`);
    }
    const golden = (await this.#folder.golden()).map((row, i) => ({ ...row, number: i + 1 }));
    const shares = toleranceShares(golden.map(recordedMatrix), this.#heads);
    for (const row of chooseRows(golden.filter((one) => this.file in one.outputs))) {
      const encoded = this.#encode(row.text, this.#promptText(undefined));
      const difference = goldenDifference(row, this.#read(await this.#run(encoded), encoded), row.outputs[this.file], shares);
      const allowed = row.tolerance[this.file];
      if (!(difference <= allowed)) throw new ArtefactError(`${this.file}: ${this.engine} computes this file wrongly here: golden row ${row.number} differs by ${difference.toPrecision(3)}, allowed ${allowed.toPrecision(3)}. Use another engine or version, or another file of the folder.`);
    }
  }

  /** Release the engine's memory. */
  async close() {
    await this.#session.close();
  }

  /** Return the text that is put in front of a text, by the prompt's name; undefined for the folder's default, empty for none. */
  #promptText(name) {
    const wanted = name === undefined || name === null ? this.#folder.processing.default_prompt : name;
    if (!wanted) return "";
    if (!Object.hasOwn(this.prompts, wanted)) throw new Error(`'${wanted}' is no prompt; the model has ${Object.keys(this.prompts).join(", ") || "none"}.`);
    return this.prompts[wanted];
  }

  #encode(input, prompt) {
    const [first, second = null] = Array.isArray(input) ? input : [input];
    const keepsEnd = this.#folder.processing.truncation_side === "left";
    return this.tokenizer.encode(prompt + first, second, { maxLength: this.maxLength, keepsEnd });
  }

  #read(outputs, row) {
    const from = this.#folder.processing.padding_side === "left" ? this.#width(row) - row.ids.length : 0;
    return readMatrix(outputs, this.#heads, row.ids, from, this.task === "fill-mask" ? maskId(this.tokenizer) : undefined);
  }

  /** Return the length that a row is padded to: none, or the smallest that the file takes. */
  #width(row) {
    return this.#session.lengths.find((length) => length >= row.ids.length) ?? row.ids.length;
  }

  /** Run one row; calls wait for one another, since engines run one at a time. */
  #run(row) {
    const spare = this.#width(row) - row.ids.length;
    const pad = (values, fill) => (this.#folder.processing.padding_side === "left" ? [...Array(spare).fill(fill), ...values] : [...values, ...Array(spare).fill(fill)]);
    const feed = { input_ids: pad(row.ids, this.#padId), attention_mask: pad(row.ids.map(() => 1), 0), token_type_ids: pad(row.typeIds, 0) };
    const unknown = this.#session.inputs.find((name) => !(name in feed));
    if (unknown) throw new ArtefactError(`${this.file} has the input '${unknown}', which is not made of texts.`);
    const own = Object.fromEntries(this.#session.inputs.map((name) => [name, feed[name]]));
    const ran = this.#busy.then(() => this.#session.run(own));
    this.#busy = ran.then(() => {}, () => {});
    return ran;
  }

  /** Mark a label whose probability is below the file's threshold as unknown. */
  #mark(answer) {
    const threshold = this.record.confidence?.unknown ?? this.#folder.processing.unknown ?? null;
    return this.task === "text-classification" && threshold !== null ? { ...answer, unknown: answer.score < threshold } : answer;
  }
}

/** Return an input as the task takes it; throw where it does not fit. */
function checkInput(input, task, heads, number) {
  const refuse = (what) => {
    throw new TypeError(`text ${number}: ${what}`);
  };
  const isText = (value) => typeof value === "string";
  if (task === "multiple-choice") {
    const [question, choices] = isText(input) ? [input, ""] : (input ?? []);
    const all = isText(choices) ? [choices] : choices;
    if (!isText(question) || !Array.isArray(all) || !all.length || !all.every(isText)) refuse("multiple-choice takes a question and a list of its choices: [question, [choice, choice, ...]].");
    return [question, all];
  }
  if (!isText(input) && !(Array.isArray(input) && input.length === 2 && input.every(isText))) refuse("is neither a text nor a pair of texts.");
  const parts = isText(input) ? [input] : input;
  if (task === "question-answering" && parts.length < 2) refuse("question-answering takes a question and a context: [question, context].");
  const single = heads.find((head) => ["token-classification", "fill-mask", "feature-extraction"].includes(head.task));
  if (single && parts.length > 1) refuse(`${single.task} takes one text, this is a pair.`);
  return isText(input) ? input : parts;
}

/** Choose golden rows: the shortest of each of as many equal stretches of the file. */
function chooseRows(rows) {
  const size = ({ text }) => [text].flat().reduce((sum, one) => sum + Array.from(one).length, 0);
  const parts = Math.min(ROWS, rows.length);
  const edges = Array.from({ length: parts + 1 }, (_, i) => Math.floor((rows.length * i) / parts));
  return edges.slice(1).map((end, i) => rows.slice(edges[i], end).reduce((a, b) => (size(b) < size(a) ? b : a)));
}

/** Return the original model's outputs that a golden row records, a row for each place. */
function recordedMatrix({ reference, places = [] }) {
  const rows = places.length || 1;
  return { rows, columns: reference.length / rows, data: reference };
}

/** Return the largest difference of an output from what was recorded, divided by its column's share of the tolerance; NaN where the shapes differ. */
function goldenDifference({ places = [], columns = [] }, matrix, expected, shares) {
  const rows = places.length ? places : Array.from({ length: matrix.rows }, (_, i) => i);
  const wide = columns.length ? columns : Array.from({ length: matrix.columns }, (_, i) => i);
  if (rows.length * wide.length !== expected.length || Math.max(...rows) >= matrix.rows || Math.max(...wide) >= matrix.columns) return NaN;
  let largest = 0;
  rows.forEach((row, i) => wide.forEach((column, k) => {
    const apart = Math.abs(matrix.data[row * matrix.columns + column] - expected[i * wide.length + k]) / shares[k];
    largest = apart > largest || Number.isNaN(apart) ? apart : largest;
  }));
  return largest;
}
