// Normalizers and pre-tokenizers of tokenizer.json: they change a text, or cut it, and keep where each character comes from.
import { compilePattern } from "./patterns.js";
import { BERT_REMOVED, COMBINING, LOWERCASE, NONSPACING, NUMERIC, PUNCTUATION, SPACE, WORD, combiningClass, compose, decompose } from "./unicode.js";
import { precompiled } from "./precompiled.js";

/** @typedef {{ codes: number[], changes: number[] }} Changes New characters, each with what it takes the place of: 0 one old one, -n one and n behind it, 1 none. */

const codesOf = (text) => Array.from(text, (letter) => letter.codePointAt(0));

/** A stretch of text: its code points and, of each, the stretch of the original text that it comes from. */
export class Piece {
  constructor(codes, starts, ends, origin) {
    Object.assign(this, { codes, starts, ends, origin });
  }

  /** Make a piece of a whole text; halves of surrogate pairs become U+FFFD. */
  static of(text) {
    const codes = codesOf(text).map((code) => (code >= 0xd800 && code < 0xe000 ? 0xfffd : code));
    return new Piece(codes, codes.map((_, i) => i), codes.map((_, i) => i + 1), 0);
  }

  get length() {
    return this.codes.length;
  }

  get text() {
    let out = "";
    for (let i = 0; i < this.length; i += 4096) out += String.fromCodePoint(...this.codes.slice(i, i + 4096));
    return out;
  }

  slice(from, to) {
    return new Piece(this.codes.slice(from, to), this.starts.slice(from, to), this.ends.slice(from, to), this.starts[from]);
  }

  /** Replace the text by other characters; `skipped` old ones are left out before the first new one. */
  transform(made, skipped = 0) {
    if (!this.length) return;
    let first = 0;
    while (first < this.length && this.starts[first] === this.ends[first]) first++; // inserted before the text: not replaced
    this._splice(made, first, this.length, skipped);
  }

  /** Put characters before the text; nothing where the text is empty. */
  prepend(codes) {
    if (!this.length) return;
    this._splice({ codes: [...codes, this.codes[0]], changes: [...codes.map((_, i) => (i ? 1 : 0)), 1] }, 0, 1, 0);
  }

  _splice(made, from, to, skipped) {
    const { codes, starts, ends } = this;
    const newStarts = [];
    const newEnds = [];
    let at = Math.min(from + skipped, to);
    for (const change of made.changes) {
      const source = Math.min(change > 0 ? at - 1 : at, this.length - 1);
      newStarts.push(source < 0 ? this.origin : starts[source]);
      newEnds.push(source < 0 ? this.origin : ends[source]);
      if (change <= 0) at = Math.min(at + 1 - change, to);
    }
    const put = (old, inside) => [...old.slice(0, from), ...inside, ...old.slice(to)];
    this.codes = put(codes, made.codes);
    this.starts = put(starts, newStarts);
    this.ends = put(ends, newEnds);
  }

  /** Put characters in the place of each match, a pair of indexes; they come from the last character of the match. */
  replace(matches, text) {
    if (!matches.length || !this.length) return;
    const codes = [];
    const starts = [];
    const ends = [];
    const copy = (from, to) => {
      for (let i = from; i < to; i++) {
        codes.push(this.codes[i]);
        starts.push(this.starts[i]);
        ends.push(this.ends[i]);
      }
    };
    let read = 0;
    for (const [from, to] of matches) {
      copy(read, from);
      for (const code of text) {
        codes.push(code);
        starts.push(to ? this.starts[to - 1] : this.origin);
        ends.push(to ? this.ends[to - 1] : this.origin);
      }
      read = to;
    }
    copy(read, this.length);
    Object.assign(this, { codes, starts, ends });
  }
}

// --- normalizers -----------------------------------------------------------------------------------------------------------------

const NMT_REMOVED = (c) => (c >= 1 && c <= 8) || c === 0xb || (c >= 0xe && c <= 0x1f) || c === 0x7f || c === 0x8f || c === 0x9f;
const NMT_BLANK = (c) =>
  c === 9 || c === 0xa || c === 0xc || c === 0xd || c === 0x1680 || (c >= 0x200b && c <= 0x200f) || c === 0x2028 || c === 0x2029 || c === 0x2581 || c === 0xfeff || c === 0xfffd;

/** Return a normalizer that keeps some characters and maps each. */
function mapping(keep, map = (code) => code) {
  return (piece) => {
    if (piece.codes.every((code) => keep(code) && map(code) === code)) return;
    const made = { codes: [], changes: [] };
    let skipped = 0;
    for (const code of piece.codes) {
      if (keep(code)) {
        made.codes.push(map(code));
        made.changes.push(0);
      } else if (!made.codes.length) skipped++;
      else made.changes[made.changes.length - 1]--;
    }
    piece.transform(made, skipped);
  };
}

/** Replace each character by those that `spell` returns. */
function expand(piece, spell) {
  const made = { codes: [], changes: [] };
  for (const code of piece.codes) {
    const spelt = spell(code);
    spelt.forEach((one, i) => {
      made.codes.push(one);
      made.changes.push(i ? 1 : 0);
    });
  }
  piece.transform(made);
}

function lowercase(piece) {
  if (piece.codes.some((code) => LOWERCASE.has(code))) expand(piece, (code) => LOWERCASE.get(code) ?? [code]);
}

function strip(left, right) {
  return (piece) => {
    let first = 0;
    let end = piece.length;
    while (left && first < end && SPACE.has(piece.codes[first])) first++;
    while (right && end > 0 && SPACE.has(piece.codes[end - 1])) end--;
    if (first === 0 && end === piece.length) return;
    const codes = piece.codes.slice(first, end);
    piece.transform({ codes, changes: codes.map(() => 0) }, first);
  };
}

/** Return the normalizer of a Unicode form: NFC, NFD, NFKC, NFKD. */
function form(compatible, composed) {
  return (piece) => {
    if (piece.codes.every((code) => code < 0xa0)) return;
    const made = decomposed(piece, compatible);
    piece.transform(composed ? joined(made) : made);
  };
}

/** Take each character apart, and order the marks behind a letter by their class. */
function decomposed(piece, compatible) {
  const out = [];
  let pending = 0;
  const order = () => {
    if (out.length - pending > 1) for (const one of out.splice(pending).sort((a, b) => a.kind - b.kind)) out.push(one);
  };
  for (const code of piece.codes) {
    decompose(code, compatible).forEach((one, i) => {
      const kind = combiningClass(one);
      if (kind === 0) {
        order();
        pending = out.length + 1;
      }
      out.push({ code: one, change: i ? 1 : 0, kind });
    });
  }
  order();
  return { codes: out.map((one) => one.code), changes: out.map((one) => one.change) };
}

/** Join letters with the marks behind them where there is one character for both. */
function joined(made) {
  const out = { codes: [], changes: [] };
  let letter = -1;
  let last = -1; // class of the last mark that stayed behind the letter
  made.codes.forEach((code, i) => {
    const kind = combiningClass(code);
    const one = letter >= 0 && (last < 0 || last < kind) ? compose(out.codes[letter], code) : -1;
    if (one >= 0) {
      out.codes[letter] = one;
      out.changes[letter] += made.changes[i] - 1;
      return;
    }
    if (kind === 0) {
      letter = out.codes.length;
      last = -1;
    } else if (letter >= 0) last = kind;
    out.codes.push(code);
    out.changes.push(made.changes[i]);
  });
  return out;
}

const isChinese = (c) =>
  c >= 0x3400 &&
  (c <= 0x4dbf || (c >= 0x4e00 && c <= 0x9fff) || (c >= 0xf900 && c <= 0xfaff) || (c >= 0x20000 && c <= 0x2a6df) ||
    (c >= 0x2a700 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) || (c >= 0x2f800 && c <= 0x2fa1f));
const keepsInBert = (c) => c !== 0 && c !== 0xfffd && (c === 9 || c === 10 || c === 13 || !BERT_REMOVED.has(c));

function separateChinese(piece) {
  if (!piece.codes.some(isChinese)) return;
  const made = { codes: [], changes: [] };
  for (const code of piece.codes) {
    made.codes.push(...(isChinese(code) ? [0x20, code, 0x20] : [code]));
    made.changes.push(...(isChinese(code) ? [0, 1, 1] : [0]));
  }
  piece.transform(made);
}

function bert({ clean_text: clean, handle_chinese_chars: chinese, strip_accents: accents, lowercase: lower }) {
  const steps = [];
  if (clean) steps.push(mapping(keepsInBert, (code) => (SPACE.has(code) ? 0x20 : code)));
  if (chinese) steps.push(separateChinese);
  if (accents ?? lower) steps.push(form(false, false), mapping((code) => !NONSPACING.has(code)));
  if (lower) steps.push(lowercase);
  return (piece) => steps.forEach((step) => step(piece));
}

/** The characters that byte-level BPE spells the 256 bytes with, as code points. */
export const BYTE_LETTERS = (() => {
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => ((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae ? b : next++));
})();
const encoder = new TextEncoder();
const spellBytes = (piece) =>
  expand(piece, (code) => (code < 0x80 ? [BYTE_LETTERS[code]] : Array.from(encoder.encode(String.fromCodePoint(code)), (byte) => BYTE_LETTERS[byte])));

/** Return the function that a normalizer of tokenizer.json is. */
export function normalizer(step, where = "normalizer") {
  if (!step) return () => {};
  switch (step.type) {
    case "Sequence": {
      const all = step.normalizers.map((one, i) => normalizer(one, `${where}.normalizers[${i}]`));
      return (piece) => all.forEach((one) => one(piece));
    }
    case "BertNormalizer": return bert(step);
    case "NFC": return form(false, true);
    case "NFD": return form(false, false);
    case "NFKC": return form(true, true);
    case "NFKD": return form(true, false);
    case "Nmt": return mapping((code) => !NMT_REMOVED(code), (code) => (NMT_BLANK(code) ? 0x20 : code));
    case "Lowercase": return lowercase;
    case "StripAccents": return mapping((code) => !COMBINING.has(code));
    case "ByteLevel": return spellBytes;
    case "Strip": return strip(step.strip_left, step.strip_right);
    case "Prepend": {
      const codes = codesOf(step.prepend);
      return (piece) => piece.prepend(codes);
    }
    case "Replace": {
      const find = compilePattern(step.pattern, where);
      const codes = codesOf(step.content);
      return (piece) => piece.replace(find(piece), codes);
    }
    case "Precompiled": return precompiled(step.precompiled_charsmap, where);
    default: throw new Error(`tokenizer.json: ${where}: the normalizer '${step.type}' is not supported.`);
  }
}

// --- pre-tokenizers --------------------------------------------------------------------------------------------------------------

const WORDS = { Regex: "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" };

/** Return the matches of a condition on single characters, as pairs of indexes. */
function matching(piece, condition) {
  const out = [];
  piece.codes.forEach((code, i) => condition(code) && out.push([i, i + 1]));
  return out;
}

/** Cut a text of some length at matches, as `behavior` says; return pairs of indexes. */
function cutAt(length, matches, behavior, invert = false) {
  const parts = [];
  let read = 0;
  for (const [from, to] of matches) {
    if (from !== read) parts.push([read, from, invert]);
    parts.push([from, to, !invert]);
    read = to;
  }
  if (read !== length) parts.push([read, length, invert]);
  if (behavior === "Isolated") return parts;
  if (behavior === "Removed") return parts.filter((part) => !part[2]);
  const out = [];
  let previous = false;
  if (behavior === "MergedWithNext") {
    for (const [from, to, is] of parts.reverse()) {
      if (is && !previous && out.length) out[0][0] = from;
      else out.unshift([from, to]);
      previous = is;
    }
    return out;
  }
  for (const [from, to, is] of parts) {
    if ((behavior === "Contiguous" ? is === previous : is && !previous) && out.length) out[out.length - 1][1] = to;
    else out.push([from, to]);
    previous = is;
  }
  return out;
}

/** Return a pre-tokenizer that replaces each piece of text by its parts that `ranges` returns; found tokens stay. */
function cutting(ranges) {
  return (pieces) =>
    pieces.flatMap((piece) => (piece instanceof Piece ? ranges(piece).filter(([from, to]) => to > from).map(([from, to]) => piece.slice(from, to)) : [piece]));
}

const atCharacters = (condition, behavior) => cutting((piece) => cutAt(piece.length, matching(piece, condition), behavior));

/** Keep runs of letters and digits, and runs of other characters, without white space. */
const atWords = cutting((piece) => {
  const out = [];
  let last = 0;
  piece.codes.forEach((code, i) => {
    const kind = WORD.has(code) ? 1 : SPACE.has(code) ? 0 : 2;
    if (kind && kind === last) out[out.length - 1][1] = i + 1;
    else if (kind) out.push([i, i + 1]);
    last = kind;
  });
  return out;
});

function byteLevel(step) {
  const find = compilePattern(WORDS, "ByteLevel");
  const cut = cutting((piece) => {
    if (step.add_prefix_space && piece.codes[0] !== 0x20) piece.prepend([0x20]);
    return (step.use_regex ?? true) ? cutAt(piece.length, find(piece), "Isolated") : [[0, piece.length]];
  });
  return (pieces) => {
    const out = cut(pieces);
    for (const piece of out) if (piece instanceof Piece) spellBytes(piece);
    return out;
  };
}

function metaspace(step) {
  const sign = step.replacement.codePointAt(0);
  const scheme = step.prepend_scheme ?? ((step.add_prefix_space ?? true) ? "always" : "never");
  return cutting((piece) => {
    piece.replace(matching(piece, (code) => code === 0x20), [sign]);
    const first = piece.codes[0] !== sign && (scheme === "always" || (scheme === "first" && piece.origin === 0));
    if (first) piece.prepend([sign]);
    return (step.split ?? true) ? cutAt(piece.length, matching(piece, (code) => code === sign), "MergedWithNext") : [[0, piece.length]];
  });
}

/** Return the function that a pre-tokenizer of tokenizer.json is: a list of pieces and found tokens becomes a longer one. */
export function preTokenizer(step, where = "pre_tokenizer") {
  if (!step) return (pieces) => pieces;
  switch (step.type) {
    case "Sequence": {
      const all = step.pretokenizers.map((one, i) => preTokenizer(one, `${where}.pretokenizers[${i}]`));
      return (pieces) => all.reduce((list, one) => one(list), pieces);
    }
    case "BertPreTokenizer": {
      const words = atCharacters((code) => SPACE.has(code), "Removed");
      const marks = atCharacters((code) => PUNCTUATION.has(code), "Isolated");
      return (pieces) => marks(words(pieces));
    }
    case "Whitespace": return atWords;
    case "WhitespaceSplit": return atCharacters((code) => SPACE.has(code), "Removed");
    case "Punctuation": return atCharacters((code) => PUNCTUATION.has(code), step.behavior ?? "Isolated");
    case "Digits": return atCharacters((code) => NUMERIC.has(code), step.individual_digits ? "Isolated" : "Contiguous");
    case "CharDelimiterSplit": {
      const sign = step.delimiter.codePointAt(0);
      return atCharacters((code) => code === sign, "Removed");
    }
    case "Split": {
      const find = compilePattern(step.pattern, where);
      return cutting((piece) => cutAt(piece.length, find(piece), step.behavior, step.invert));
    }
    case "Metaspace": return metaspace(step);
    case "ByteLevel": return byteLevel(step);
    default: throw new Error(`tokenizer.json: ${where}: the pre-tokenizer '${step.type}' is not supported.`);
  }
}
