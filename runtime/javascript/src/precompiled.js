// SentencePiece's table of replaced characters: a double array over bytes that leads to texts, each ended by a zero byte.
import { GRAPHEMES } from "./unicode.js";

const LONGEST = 6;
const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** Return the normalizer of a `precompiled_charsmap` in Base64. */
export function precompiled(table, where) {
  const raw = Uint8Array.from(atob(table ?? ""), (letter) => letter.charCodeAt(0));
  const view = new DataView(raw.buffer);
  const size = raw.length >= 4 ? view.getUint32(0, true) : 0;
  if (size === 0 || size % 4 || size > raw.length - 4) throw new Error(`tokenizer.json: ${where}: 'precompiled_charsmap' is no table of characters.`);
  const units = Int32Array.from({ length: size / 4 }, (_, i) => view.getInt32(4 + 4 * i, true));
  const texts = raw.subarray(4 + size);
  const find = (codes) => (codes.length < LONGEST ? lookUp(units, texts.length, encoder.encode(String.fromCodePoint(...codes))) : -1);
  const textAt = (from) => {
    const end = texts.indexOf(0, from);
    return Array.from(decoder.decode(texts.subarray(from, end < 0 ? texts.length : end)), (letter) => letter.codePointAt(0));
  };
  return (piece) => {
    const made = { codes: [], changes: [] };
    let modified = false;
    const replace = (count, text) => {
      modified = true;
      made.codes.push(...text);
      made.changes.push(...text.map((_, i) => (i < count ? 0 : 1)));
      if (text.length < count && made.changes.length) made.changes[made.changes.length - 1] -= count - text.length;
    };
    for (let start = 0; start < piece.length; ) {
      const end = nextCluster(piece.codes, start);
      const whole = find(piece.codes.slice(start, end));
      if (whole >= 0) {
        replace(end - start, textAt(whole));
        start = end;
      }
      for (; start < end; start++) {
        const text = find([piece.codes[start]]);
        if (text >= 0) replace(1, textAt(text));
        else {
          made.codes.push(piece.codes[start]);
          made.changes.push(0);
        }
      }
    }
    if (modified) piece.transform(made);
  };
}

/** Return where the text of the shortest key starts that these bytes start with; -1 where there is none, or for 6 bytes or more. */
function lookUp(units, most, bytes) {
  if (bytes.length >= LONGEST) return -1;
  const offset = (unit) => (unit >>> 10) << ((unit & 512) >> 6);
  let node = offset(units[0]);
  for (const label of bytes) {
    node ^= label;
    if (label === 0 || node < 0 || node >= units.length) return -1;
    const unit = units[node];
    if ((unit & (0x80000000 | 255)) !== label) return -1;
    node ^= offset(unit);
    if (unit & 256) return node < 0 || node >= units.length ? -1 : Math.min(units[node] & 0x7fffffff, most);
  }
  return -1;
}

const [CR, LF, CONTROL, EXTEND, ZWJ, REGIONAL, PREPEND, SPACING, L, V, T, LV, LVT] = Array.from({ length: 13 }, (_, i) => i + 1);
const PICTOGRAM = 64;
const kindOf = (value) => value & 15;
const conjunctOf = (value) => (value >> 4) & 3;

/** Return the end of the grapheme cluster that starts at a place (Unicode annex 29). */
function nextCluster(codes, start) {
  let before = GRAPHEMES.get(codes[start]);
  let regionals = kindOf(before) === REGIONAL ? 1 : 0;
  let pictogram = (before & PICTOGRAM) !== 0;
  let joined = false; // a pictogram, what extends it, and a joiner
  let consonant = conjunctOf(before) === 2;
  let linked = false; // a consonant, and what extends it, a linker among them
  for (let at = start + 1; at < codes.length; at++) {
    const after = GRAPHEMES.get(codes[at]);
    const kind = kindOf(after);
    const picture = joined && (after & PICTOGRAM) !== 0;
    const conjunct = linked && conjunctOf(after) === 2;
    const flag = kindOf(before) === REGIONAL && kind === REGIONAL && regionals % 2 === 1;
    if (!(picture || conjunct || flag || joins(kindOf(before), kind))) return at;
    regionals = kind === REGIONAL ? regionals + 1 : 0;
    joined = pictogram && kind === ZWJ;
    pictogram = (after & PICTOGRAM) !== 0 || (pictogram && kind === EXTEND);
    linked = consonant && (conjunctOf(after) === 1 || (linked && conjunctOf(after) === 3));
    consonant = conjunctOf(after) === 2 || (consonant && conjunctOf(after) !== 0);
    before = after;
  }
  return codes.length;
}

function joins(before, after) {
  if (before === CR && after === LF) return true;
  if ((before >= CR && before <= CONTROL) || (after >= CR && after <= CONTROL)) return false;
  if (after === EXTEND || after === ZWJ || after === SPACING || before === PREPEND) return true;
  if (before === L) return after === L || after === V || after === LV || after === LVT;
  if (before === LV || before === V) return after === V || after === T;
  return (before === LVT || before === T) && after === T;
}
