/** Returns the bytes of a file of an artefact folder by its path, such as `onnx/model_int8.onnx`. */
export type Read = (path: string) => Promise<Uint8Array>;

/** A text, a pair of texts (question and context), or a question with its choices. */
export type Text = string | readonly [string, string] | readonly [string, readonly string[]];

export interface LoadOptions {
  /** `int8`, `fp32`, ...; default the scheme of the folder's default file. */
  scheme?: string;
  /** `onnx` or `tflite` (browsers only); default the format of the folder's default file. */
  format?: "onnx" | "tflite";
  /** Path of one file of the folder, instead of scheme and format. */
  file?: string;
  /** Threads; more than one in a page needs cross-origin isolation. Default: the engine's own choice for ONNX, 1 for TFLite. */
  threads?: number;
  /** What computes: `cpu` (WebAssembly in browsers; the default), `webgpu`, `webnn`. */
  accelerator?: "cpu" | "webgpu" | "webnn";
  /** The module `onnxruntime-web` or `onnxruntime-node`; default what can be imported under these names. */
  ort?: unknown;
  /** Address of the folder `dist` of onnxruntime-web, where the page serves it itself. */
  ortWasm?: string | URL;
  /** The module `@litertjs/core`; default what can be imported under this name. */
  litert?: unknown;
  /** Address of the folder `wasm` of @litertjs/core: needed for TFLite files. */
  litertWasm?: string | URL;
  /** Whether recorded rows are run first, and a machine that computes them wrongly is refused. Default true. */
  selfTest?: boolean;
  /** Another engine in the place of these, e.g. for React Native. */
  engine?: (bytes: Uint8Array, record: ModelRecord, options: LoadOptions) => Promise<Session>;
}

/** An opened model file of an engine of your own. */
export interface Session {
  name: string;
  /** Empty where the engine does not tell it. */
  version: string;
  /** Names of the inputs: some of `input_ids`, `attention_mask`, `token_type_ids`. */
  inputs: string[];
  /** The only lengths that the file takes, ascending; empty for any. */
  lengths: number[];
  /** Run one row; each input has as many numbers as the row has tokens. Return the outputs by name. */
  run(feed: Record<string, number[]>): Promise<Record<string, { shape: number[]; data: Float32Array }>>;
  close(): void | Promise<void>;
}

/** The record of a model file in artifacts.json. */
export interface ModelRecord {
  path: string;
  sha256: string;
  bytes: number;
  format: string;
  scheme: string;
  default?: boolean;
  [field: string]: unknown;
}

interface MaybeTruncated {
  /** Whether the text was longer than the model's longest input, so that a part of it was not read. */
  truncated: boolean;
}

/** text-classification */
export interface Prediction extends MaybeTruncated {
  label: string;
  score: number;
  /** Probability of every label. */
  scores: Record<string, number>;
  /** Whether the probability is below the file's threshold; null if the file has none. */
  unknown: boolean | null;
}

/** multi-label */
export interface Labelling extends MaybeTruncated {
  /** Labels whose probability reaches their threshold, the most probable first. */
  labels: string[];
  scores: Record<string, number>;
}

/** regression */
export interface Value extends MaybeTruncated {
  value: number;
}

/** token-classification; places are counted in code points. */
export interface Spans extends MaybeTruncated {
  spans: { start: number; end: number; label: string; text: string; score: number }[];
}

/** question-answering; places in the context are counted in code points. */
export interface Excerpt extends MaybeTruncated {
  /** The answer as it stands in the context; empty if the model predicts that there is none. */
  text: string;
  start: number;
  end: number;
  score: number;
}

/** multiple-choice */
export interface Choice extends MaybeTruncated {
  index: number;
  text: string;
  score: number;
  /** Probability of each choice, in their order. */
  scores: number[];
  numbers: number[];
  choices: string[];
}

/** fill-mask */
export interface Filled extends MaybeTruncated {
  /** For each mask the most probable tokens, best first. */
  places: { token: string; text: string; score: number }[][];
}

/** feature-extraction */
export interface Embedding extends MaybeTruncated {
  vector: Float32Array;
}

export interface Answers {
  "text-classification": Prediction;
  "multi-label": Labelling;
  regression: Value;
  "token-classification": Spans;
  "question-answering": Excerpt;
  "multiple-choice": Choice;
  "fill-mask": Filled;
  "feature-extraction": Embedding;
  several: HeadAnswers;
}
export type Task = keyof Answers;

/** Tasks that one of several heads can have. */
export type HeadTask = "text-classification" | "multi-label" | "regression" | "token-classification";
/** The task of each of several heads by its name, such as `{ intent: "text-classification"; slots: "token-classification" }`. */
export type Heads = { readonly [name: string]: HeadTask };
/** several: the answer of each head under its name, `answer.intent.label`, all computed in one pass. */
export type HeadAnswers<H extends Heads = Heads> = { [name in keyof H]: Answers[H[name]] } & MaybeTruncated;
/** The answer of a model with a task, or with several heads. */
export type AnswerOf<T extends Task | Heads> = T extends Task ? Answers[T] : T extends Heads ? HeadAnswers<T> : never;

/**
 * Open an artefact folder for prediction.
 * @typeParam T The task, or the heads of a model with several.
 * @param folder A path (Node), the address of the folder, or a function that returns its files.
 * @throws If it is no artefact folder, a file is not the listed one, or this machine computes the file wrongly.
 */
export function load<T extends Task | Heads = Task>(folder: string | URL | Read, options?: LoadOptions): Promise<Model<T>>;

/** An artefact folder opened for prediction. */
export class Model<T extends Task | Heads = Task> {
  private constructor();
  readonly task: T extends Task ? T : "several";
  /** The task of each of several heads by its name; null for one head. */
  readonly heads: Heads | null;
  /** Path of the model file in the folder. */
  readonly file: string;
  /** Name and version of the engine. */
  readonly engine: string;
  readonly record: ModelRecord;
  /** Label names in order of their ids; of several heads each with its head's name in front, as in `intent: set_alarm`. */
  readonly labels: string[];
  /** Texts that can be put in front of a text, by name. */
  readonly prompts: Record<string, string>;
  /** The mask token, such as `[MASK]`; null if the vocabulary has none. */
  readonly maskToken: string | null;
  /** Most tokens of an input. */
  readonly maxLength: number;
  readonly tokenizer: Tokenizer;
  /** Answer each text, in order. `prompt` names the text to put in front; default the folder's own, empty for none. */
  predict(texts: string | readonly Text[], options?: { prompt?: string }): Promise<AnswerOf<T>[]>;
  /** Rank passages for a query, by embeddings or with a reranker, best first. */
  rank(query: string, passages: readonly string[], options?: { prompt?: string; passagePrompt?: string }): Promise<{ index: number; text: string; score: number }[]>;
  /** Return how alike two vectors are, as the folder compares them; the larger, the more. */
  similarity(one: Float32Array, other: Float32Array): number;
  /** Run recorded rows; throws where a token or an output is not as recorded. */
  selfTest(): Promise<void>;
  /** Release the engine's memory. */
  close(): Promise<void>;
}

/** A tokenized text or pair, a number per token; places are counted in code points. */
export interface Encoding {
  ids: number[];
  typeIds: number[];
  starts: number[];
  ends: number[];
  /** Number of the word that the pre-tokenizer cut; -1 of special tokens. */
  words: number[];
  /** Which text it comes from: 0, 1, or -1 of special tokens. */
  parts: number[];
  truncated: boolean;
}

/** Makes the token ids that Python's `tokenizers` makes of the same tokenizer.json. */
export class Tokenizer {
  /** @param content The parsed content of a tokenizer.json. */
  constructor(content: unknown);
  readonly largestId: number;
  specialTokens(pair?: boolean): number;
  id(token: string): number | undefined;
  token(id: number): string | undefined;
  decode(id: number): string;
  encode(first: string, second?: string | null, limits?: { maxLength?: number; keepsEnd?: boolean }): Encoding;
  windows(question: string, context: string, maxLength: number, stride: number): Encoding[];
}
