// Token ids of texts as Python's library `tokenizers` makes them of the same tokenizer.json: equal ids, segment ids and places.
import { openModel } from "./models.js";
import { BYTE_LETTERS, Piece, normalizer, preTokenizer } from "./steps.js";
import { SPACE, WORD } from "./unicode.js";

/**
 * @typedef {object} Encoding One tokenized text or pair, a number per token.
 * @property {number[]} ids Token ids with special tokens.
 * @property {number[]} typeIds Segment ids.
 * @property {number[]} starts First character in the text, in code points; 0 of special tokens.
 * @property {number[]} ends The character after the last one.
 * @property {number[]} words Number of the word that the pre-tokenizer cut; -1 of special tokens.
 * @property {number[]} parts Which text it comes from: 0, 1, or -1 of special tokens.
 * @property {boolean} truncated Whether tokens were cut off.
 */
/** @typedef {{ id: number, type: number, start: number, end: number, part: number, word: number, leading: number, trailing: number }} Row */

const BLANK = BYTE_LETTERS[0x20];
const isBlank = (code) => code === BLANK || SPACE.has(code);
const META = "\u2581";

export class Tokenizer {
  #plain;
  #normalized;
  #normalize;
  #preTokenize;
  #model;
  #frame;
  #added;
  #idsOfAdded;
  #decoder;

  /** @param {any} content The content of a tokenizer.json. */
  constructor(content) {
    if (!content?.model?.vocab) throw new Error("tokenizer.json: not a tokenizer: it has no model.");
    this.#normalize = normalizer(content.normalizer);
    this.#preTokenize = preTokenizer(content.pre_tokenizer);
    this.#model = openModel(content.model);
    this.#frame = readFrame(content.post_processor);
    this.#decoder = { kind: kindOfDecoder(content.decoder ?? {}), suffix: content.decoder?.suffix ?? "" };
    this.#added = this.#readAdded(content.added_tokens ?? []);
    this.#idsOfAdded = new Map([...this.#added].map(([id, token]) => [token.content, id]));
    const texts = (normalized) => new Map([...this.#added].filter(([, token]) => token.normalized === normalized).map(([id, token]) => [id, token.content]));
    this.#plain = new AddedTokens(this.#added, texts(false));
    const folded = new Map([...texts(true)].map(([id, text]) => {
      const piece = Piece.of(text);
      this.#normalize(piece);
      return [id, piece.text];
    }));
    this.#normalized = new AddedTokens(this.#added, folded);
  }

  /** Read the added tokens by id: the vocabulary's, else the next ones behind it. */
  #readAdded(tokens) {
    const out = new Map();
    const known = new Map();
    let next = this.#model.ids.size;
    for (const token of tokens) {
      if (!token.content) continue;
      if (!known.has(token.content)) known.set(token.content, this.#model.ids.get(token.content) ?? next++);
      out.set(known.get(token.content), token);
    }
    return out;
  }

  /** Number of special tokens around a text, or around a pair of texts. */
  specialTokens(pair = false) {
    return this.#frame[pair ? "pair" : "single"].filter((slot) => slot.id !== undefined).length;
  }

  /** Largest id of a token. */
  get largestId() {
    return Math.max(this.#model.names.length - 1, ...this.#added.keys());
  }

  /** Return the id of a token; undefined where the vocabulary has none of this name. @param {string} token */
  id(token) {
    return this.#idsOfAdded.get(token) ?? this.#model.ids.get(token);
  }

  /** Return a token as the vocabulary spells it. @param {number} id */
  token(id) {
    return this.#added.get(id)?.content ?? this.#model.names[id];
  }

  /** Return a single token as it reads; empty for a special token. @param {number} id */
  decode(id) {
    const added = this.#added.get(id);
    if (added) return added.special ? "" : added.content;
    const token = this.#model.names[id];
    const { kind, suffix } = this.#decoder;
    if (kind === "ByteLevel") return readByteLetters(token);
    if (kind === "Metaspace") return (token.startsWith(META) ? token.slice(1) : token).replaceAll(META, " ");
    return kind === "BPEDecoder" && suffix && token.endsWith(suffix) ? token.slice(0, -suffix.length) : token;
  }

  /**
   * Tokenize a text or a pair, cut to a length: of a pair the longer text loses tokens first.
   * @param {string} first
   * @param {string | null} [second]
   * @param {{ maxLength?: number, keepsEnd?: boolean }} [limits] Longest input; whether the beginning is cut off and not the end.
   * @returns {Encoding}
   */
  encode(first, second = null, { maxLength = Infinity, keepsEnd = false } = {}) {
    const rows = [first, ...(second === null ? [] : [second])].map((text, part) => this.#rows(text, part));
    const room = maxLength - this.specialTokens(second !== null);
    if (room < 1) throw new Error(`A length of ${maxLength} leaves no room for text next to ${maxLength - room} special tokens.`);
    const kept = sizesToKeep(rows.map((one) => one.length), room).map((size, i) => (keepsEnd ? rows[i].slice(rows[i].length - size) : rows[i].slice(0, size)));
    const truncated = kept.some((one, i) => one.length < rows[i].length);
    return this.#around(kept[0], kept[1], false, truncated);
  }

  /**
   * Tokenize a question with each of the overlapping windows that a long context is read in.
   * @param {string} question
   * @param {string} context
   * @param {number} maxLength Longest window, in tokens.
   * @param {number} stride Tokens that two neighbours share.
   * @returns {Encoding[]}
   */
  windows(question, context, maxLength, stride) {
    const first = this.#rows(question, 0);
    const second = this.#rows(context, 1);
    const used = first.length + this.specialTokens(true);
    const room = maxLength - used;
    if (room < 1) throw new Error(`The question has ${used} tokens with the special ones, the model takes ${maxLength}: no room for the context. Shorten it.`);
    const out = [];
    const step = room - Math.min(stride, room - 1);
    for (let start = 0; ; start += step) {
      const end = Math.min(start + room, second.length);
      out.push(this.#around(first, second.slice(start, end), start > 0, second.length > room));
      if (end === second.length) return out;
    }
  }

  /** Tokenize one text without a frame. @returns {Row[]} */
  #rows(text, part) {
    let pieces = this.#plain.split([Piece.of(text)]);
    for (const piece of pieces) if (piece instanceof Piece) this.#normalize(piece);
    pieces = this.#normalized.split(pieces).filter((piece) => !(piece instanceof Piece) || piece.length);
    const out = [];
    this.#preTokenize(pieces).forEach((piece, word) => {
      if (!(piece instanceof Piece)) {
        out.push({ ...piece, type: part, part, word });
        return;
      }
      for (const { id, start, end } of this.#model.tokenize(Array.from(piece.text))) {
        const blanks = this.#frame.trims.length ? blanksOf(Array.from(this.#model.names[id], (letter) => letter.codePointAt(0))) : { leading: 0, trailing: 0 };
        out.push({ id, type: part, start: piece.starts[start], end: piece.ends[end - 1], part, word, ...blanks });
      }
    });
    return out;
  }

  /** Put the special tokens around a text or two; `later` in the windows behind the first one. @returns {Encoding} */
  #around(first, second, later, truncated) {
    const trimmed = [first, second].map((rows) => rows && this.#frame.trims.reduce(trimBlanks, rows));
    const all = this.#frame[second ? "pair" : "single"].flatMap((slot) => {
      if (slot.id !== undefined) return [{ id: slot.id, type: slot.type, start: 0, end: 0, part: -1, word: -1 }];
      const own = slot.type === undefined || (later && this.#frame.keepsTypes && slot.text === 1);
      return own ? trimmed[slot.text] : trimmed[slot.text].map((row) => ({ ...row, type: slot.type }));
    });
    const column = (name) => all.map((row) => row[name]);
    return { ids: column("id"), typeIds: column("type"), starts: column("start"), ends: column("end"), words: column("word"), parts: column("part"), truncated };
  }
}

/** Return how many tokens of a text, or of each of two, are kept in some room. */
function sizesToKeep(sizes, room) {
  if (sizes.length === 1) return [Math.min(sizes[0], room)];
  if (sizes[0] + sizes[1] <= room) return sizes;
  let shorter = Math.min(...sizes);
  let longer = shorter > room ? shorter : Math.max(shorter, room - shorter);
  if (shorter + longer > room) {
    shorter = Math.floor(room / 2);
    longer = shorter + (room % 2);
  }
  const wanted = sizes[0] > sizes[1] ? [longer, shorter] : [shorter, longer];
  return wanted.map((size, i) => Math.min(size, sizes[i]));
}

/** Count the blanks at both ends of a token. */
function blanksOf(codes) {
  const leading = codes.findIndex((code) => !isBlank(code));
  if (leading < 0) return { leading: codes.length, trailing: codes.length };
  return { leading, trailing: codes.length - 1 - codes.findLastIndex((code) => !isBlank(code)) };
}

/** Cut white space from the places of tokens, as byte-level post-processors do. */
function trimBlanks(rows, { prefixSpace }) {
  return rows.map((row, i) => {
    let { start, end } = row;
    if (row.leading > 0) {
      const kept = (i === 0 || start === 0) && prefixSpace && row.leading === 1;
      start = Math.min(start + (kept ? 0 : row.leading), end);
    }
    if (row.trailing > 0 && end >= row.trailing) end = Math.max(end - row.trailing, start);
    return { ...row, start, end };
  });
}

/** Finds added tokens in a text: the longest one from the leftmost place on. */
class AddedTokens {
  #tree = { next: new Map(), id: -1 };
  #tokens;

  constructor(tokens, texts) {
    this.#tokens = tokens;
    for (const [id, text] of texts) {
      let node = this.#tree;
      for (const letter of text) {
        const code = letter.codePointAt(0);
        if (!node.next.has(code)) node.next.set(code, { next: new Map(), id: -1 });
        node = node.next.get(code);
      }
      if (node !== this.#tree) node.id = id;
    }
  }

  /** Cut the tokens out of pieces. */
  split(pieces) {
    if (!this.#tree.next.size) return pieces;
    return pieces.flatMap((piece) => (piece instanceof Piece ? this.#splitPiece(piece) : [piece]));
  }

  #splitPiece(piece) {
    const { codes } = piece;
    const isWord = (at) => at >= 0 && at < codes.length && WORD.has(codes[at]);
    const out = [];
    let last = 0;
    let spaceEnd = 0;
    for (let at = 0; at < codes.length; ) {
      const [id, size] = this.#longest(codes, at);
      if (!size) {
        at++;
        continue;
      }
      let start = at;
      let stop = at + size;
      at = stop;
      const token = this.#tokens.get(id);
      if (token.single_word && (isWord(start - 1) || isWord(stop))) continue;
      if (token.lstrip) {
        while (start > 0 && SPACE.has(codes[start - 1])) start--;
        start = Math.max(start, last);
      }
      if (token.rstrip) {
        let end = stop;
        while (end < codes.length && SPACE.has(codes[end])) end++;
        spaceEnd = stop < spaceEnd ? spaceEnd : end;
        stop = spaceEnd;
      }
      if (last < start) out.push(piece.slice(last, start));
      out.push({ id, start: piece.starts[start], end: piece.ends[stop - 1], ...blanksOf(codes.slice(start, stop)) });
      last = stop;
    }
    if (last === 0) return [piece];
    if (last < codes.length) out.push(piece.slice(last, codes.length));
    return out;
  }

  #longest(codes, from) {
    let found = [-1, 0];
    let node = this.#tree;
    for (let at = from; at < codes.length && (node = node.next.get(codes[at])); at++) if (node.id >= 0) found = [node.id, at + 1 - from];
    return found;
  }
}

// --- post-processor and decoder --------------------------------------------------------------------------------------------------

const FIRST = { text: 0 };
const SECOND = { text: 1 };

/** Read the post-processor: what stands around one text and two, and whether blanks are cut from places. */
function readFrame(step) {
  const frame = { single: [FIRST], pair: [FIRST, SECOND], trims: [], keepsTypes: false };
  let framed = false;
  const read = (one) => {
    if (framed) throw new Error(`tokenizer.json: post_processor: '${one.type}' behind one that adds special tokens is not supported.`);
    if (one.type === "Sequence") {
      one.processors.forEach(read);
      return;
    }
    if (one.trim_offsets) frame.trims.push({ prefixSpace: one.add_prefix_space });
    if (one.type === "ByteLevel") return;
    framed = true;
    if (one.type === "BertProcessing") {
      const [cls, sep] = [{ id: one.cls[1], type: 0 }, { id: one.sep[1], type: 0 }];
      Object.assign(frame, { single: [cls, FIRST, sep], pair: [cls, FIRST, sep, SECOND, { ...sep, type: 1 }] });
    } else if (one.type === "RobertaProcessing") {
      const [cls, sep] = [{ id: one.cls[1], type: 0 }, { id: one.sep[1], type: 0 }];
      const single = [cls, { ...FIRST, type: 0 }, sep];
      Object.assign(frame, { single, pair: [...single, sep, { ...SECOND, type: 0 }, sep] });
    } else if (one.type === "TemplateProcessing") {
      const slots = (pieces) => pieces.flatMap(({ Sequence: text, SpecialToken: special }) =>
        text ? [{ text: text.id === "A" ? 0 : 1, type: text.type_id }] : one.special_tokens[special.id].ids.map((id) => ({ id, type: special.type_id })));
      Object.assign(frame, { single: slots(one.single), pair: slots(one.pair), keepsTypes: true });
    } else throw new Error(`tokenizer.json: post_processor: '${one.type}' is not supported.`);
  };
  if (step) read(step);
  return frame;
}

/** Return the decoder's type; of a sequence, that of the first part that spells blanks. */
function kindOfDecoder(decoder) {
  for (const part of decoder.decoders ?? []) {
    const kind = kindOfDecoder(part);
    if (kind === "ByteLevel" || kind === "Metaspace") return kind;
  }
  return decoder.type;
}

/** Return the text of bytes that a token spells; what is no byte letter stays as it is. */
function readByteLetters(token) {
  const encoder = new TextEncoder();
  const bytes = Array.from(token).flatMap((letter) => {
    const byte = BYTE_LETTERS.indexOf(letter.codePointAt(0));
    return byte >= 0 ? [byte] : [...encoder.encode(letter)];
  });
  return new TextDecoder().decode(Uint8Array.from(bytes));
}
