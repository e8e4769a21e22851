// Reads an artefact folder: its list of files, its settings and single files, each checked against the list.

/** @typedef {(path: string) => Promise<Uint8Array>} Read Returns the bytes of a file of the folder. */

const FILES = { list: "artifacts.json", config: "config.json", tokenizer: "tokenizer.json", golden: "golden.jsonl", goldenTokens: "golden_tokens.jsonl" };
const decoder = new TextDecoder();

export class ArtefactError extends Error {
  name = "ArtefactError";
}

/**
 * Return a function that reads files of a folder.
 * @param {string | URL | Read} folder A path (Node), an address, or such a function.
 * @returns {Read}
 */
function readerOf(folder) {
  if (typeof folder === "function") return folder;
  const inNode = typeof process !== "undefined" && Boolean(process.versions?.node);
  const text = String(folder);
  if (inNode && !/^https?:/.test(text)) {
    return async (path) => {
      const [{ readFile }, { join }, { fileURLToPath }] = await Promise.all([import("node:fs/promises"), import("node:path"), import("node:url")]);
      return readFile(join(text.startsWith("file:") ? fileURLToPath(text) : text, path));
    };
  }
  const base = new URL(text.endsWith("/") ? text : `${text}/`, globalThis.location?.href);
  return async (path) => {
    const address = new URL(path.split("/").map(encodeURIComponent).join("/"), base); // "%2e%2e" and " //host" are names here
    const answer = await fetch(address);
    if (!answer.ok) throw new ArtefactError(`${address}: ${answer.status} ${answer.statusText}`);
    return new Uint8Array(await answer.arrayBuffer());
  };
}

/** An artefact folder whose list was read; `openFolder` makes one. */
export class Folder {
  #read;

  constructor(read, list) {
    this.#read = read;
    this.list = list;
    this.processing = list.processing;
    this.models = list.files.filter((file) => file.kind === "model" && !file.alias_of);
  }

  /** Return whether the folder lists a file. */
  has(path) {
    return this.list.files.some((file) => file.path === path);
  }

  /** Read a listed file; refuse one of another size or, where this page may compute one (https, localhost), another sha256. */
  async read(path) {
    const record = this.list.files.find((file) => file.path === path);
    if (!record) throw new ArtefactError(`${path} is not in the folder's list.`);
    const bytes = await this.#read(path);
    if (bytes.length !== record.bytes) throw new ArtefactError(`${path}: ${bytes.length} bytes, the folder's list says ${record.bytes}. Copy the folder again.`);
    const subtle = globalThis.crypto?.subtle;
    if (subtle) {
      const digest = Array.from(new Uint8Array(await subtle.digest("SHA-256", bytes)), (byte) => byte.toString(16).padStart(2, "0")).join("");
      if (digest !== record.sha256) throw new ArtefactError(`${path} changed since it was packed: its sha256 is not the listed one. Copy the folder again.`);
    }
    return bytes;
  }

  /** Read a listed file of JSON. */
  async json(path) {
    return parse(path, decoder.decode(await this.read(path)));
  }

  /** Read a listed file of JSON Lines; empty where the folder does not have it. */
  async lines(path) {
    if (!this.has(path)) return [];
    const lines = decoder.decode(await this.read(path)).split("\n").filter((line) => line.trim());
    return lines.map((line) => parse(path, line));
  }

  /** Return the record of the file that path, scheme and format name; without them the folder's default file, else one like it. */
  choose({ file, scheme, format }, canOpen) {
    const named = this.models.find((record) => record.path === file);
    if (file !== undefined && (scheme !== undefined || format !== undefined)) throw new ArtefactError("file names a file already; leave scheme and format out.");
    if (file !== undefined && !named) throw new ArtefactError(`no model file '${file}' in the folder; it has ${this.models.map((record) => record.path).join(", ")}.`);
    const standard = this.models.find((record) => record.default) ?? this.models[0];
    const plain = this.models.filter((record) => !record.client && !record.runtime && canOpen(record));
    const wanted = plain.filter((record) => (format ?? record.format) === record.format && (scheme ?? standard.scheme) === record.scheme);
    const record = named ?? wanted.find((one) => one === standard) ?? wanted.find((one) => one.format === standard.format) ?? wanted[0];
    const chosen = record ?? (scheme === undefined && format === undefined ? plain[0] : undefined);
    if (!chosen) throw new ArtefactError(`the folder has no ${[format, scheme].filter(Boolean).join(" ")} file that runs here; it has ${this.models.map((one) => one.path).join(", ")}.`);
    if (chosen.status === "failed") throw new ArtefactError(`${chosen.path} is marked failed; it was never meant to be used.`);
    return chosen;
  }

  /** Read what describes the texts: tokenizer.json and the padding token's id, after the check of config.json and the labels. */
  async describe() {
    const config = this.has(FILES.config) ? await this.json(FILES.config) : {};
    const names = config.id2label && Object.keys(config.id2label).length === this.list.labels.length ? Object.keys(config.id2label).map((_, i) => config.id2label[i]) : null;
    if (names && this.list.labels.length && names.join("\n") !== this.list.labels.join("\n")) throw new ArtefactError("artifacts.json: labels differ from those of config.json. Copy the folder again.");
    const heads = (named) => Object.entries(named ?? {}).sort().join();
    if (this.has(FILES.config) && heads(config.pocketbert_heads) !== heads(this.list.heads)) throw new ArtefactError("artifacts.json: heads differ from those of config.json. Copy the folder again.");
    return { content: await this.json(FILES.tokenizer), padId: config.pad_token_id ?? config.pad_index ?? 0, tableRows: config.vocab_size };
  }

  golden() {
    return this.lines(FILES.golden);
  }

  goldenTokens() {
    return this.lines(FILES.goldenTokens);
  }
}

function parse(path, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ArtefactError(`${path}: no JSON: ${error.message}`);
  }
}

/** Read the list of an artefact folder. @param {string | URL | Read} source @returns {Promise<Folder>} */
export async function openFolder(source) {
  const read = readerOf(source);
  let raw;
  try {
    raw = await read(FILES.list);
  } catch (error) {
    throw new ArtefactError(`${typeof source === "function" ? "the folder" : source} is no artefact folder: ${error.message}`);
  }
  const list = parse(FILES.list, decoder.decode(raw));
  const unsafe = (path) => typeof path !== "string" || /^[/\\]|^[a-z]+:|(^|[/\\])\.\.([/\\]|$)/i.test(path);
  if (!String(list.schema_version).startsWith("1.")) throw new ArtefactError(`artifacts.json: schema version ${list.schema_version} is not supported; supported is 1.`);
  if (!Array.isArray(list.files) || list.files.some((file) => unsafe(file.path))) throw new ArtefactError("artifacts.json: a path leaves the folder.");
  if (!list.files.some((file) => file.kind === "model")) throw new ArtefactError("artifacts.json: lists no model file.");
  if (list.form && list.form !== "text") throw new ArtefactError(`its files have the form '${list.form}', with inputs that @pocketbert/runtime does not make.`);
  return new Folder(read, list);
}
