// Sets of characters and tables of Unicode, as the Python library `tokenizers` has them: browsers have those of other Unicode versions.
// The tables are written by scripts/unicode_tables.py, which asks the library for them character by character.
import { TABLES } from "./unicode-tables.js";

const PLANE = 0x10000;

/** A set of code points: a bit for each of the first plane, runs for the others. */
class CodePointSet {
  constructor(runs) {
    this.low = new Uint8Array(PLANE);
    this.high = [];
    for (const [first, last] of runs) {
      if (first < PLANE) this.low.fill(1, first, Math.min(last + 1, PLANE));
      if (last >= PLANE) this.high.push([Math.max(first, PLANE), last]);
    }
  }

  has(code) {
    return code < PLANE ? this.low[code] === 1 : this.high.some(([first, last]) => code >= first && code <= last);
  }
}

/** Read all tables: numbers of 7 bits a byte. Return by name arrays of [first, last, value], or a map from a code point to code points. */
function readTables(text) {
  const raw = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  let at = 4;
  const number = () => {
    let out = 0;
    for (let shift = 0; ; shift += 7) {
      const next = raw[at++];
      out |= (next & 127) << shift;
      if (next < 128) return out;
    }
  };
  const runs = (numbered) => {
    let last = 0;
    return Array.from({ length: number() }, () => {
      const first = last + number();
      last = first + number();
      return [first, last, numbered ? number() : 1];
    });
  };
  const texts = () => {
    const out = new Map();
    for (let left = number(), code = 0; left > 0; left--) {
      code += number();
      const base = code;
      out.set(code, Array.from({ length: number() }, () => {
        const step = number();
        return base + (step & 1 ? -(step >>> 1) : step >>> 1);
      }));
    }
    return out;
  };
  const tables = {};
  for (let left = number(); left > 0; left--) {
    const length = number();
    const name = String.fromCharCode(...raw.subarray(at, at + length));
    at += length;
    const kind = number();
    tables[name] = kind === 2 ? texts() : runs(kind === 1);
  }
  return tables;
}

const tables = readTables(TABLES);
const set = (name) => new CodePointSet(tables[name]);

export const SPACE = set("rust_space");
export const NUMERIC = set("rust_numeric");
export const PUNCTUATION = set("punctuation");
export const WORD = set("word");
export const BERT_REMOVED = set("bert_removed");
export const NONSPACING = set("nonspacing");
export const COMBINING = set("combining");
export const LOWERCASE = tables.lowercase;
export const GRAPHEMES = valuesOf(tables.graphemes);
const CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split(" "); // as the tables count them
const NFD = tables.nfd;
const NFKD = tables.nfkd;
const CLASSES = valuesOf(tables.combining_class);
const COMPOSED = new Map([...tables.composed].map(([code, pair]) => [pair.join(), code]));

/** Return a map from code point to number out of runs. */
function valuesOf(runs) {
  const firsts = runs.map(([first]) => first);
  return {
    get(code) {
      let from = 0;
      let to = firsts.length;
      while (from < to) {
        const middle = (from + to) >> 1;
        if (firsts[middle] <= code) from = middle + 1;
        else to = middle;
      }
      return from > 0 && code <= runs[from - 1][1] ? runs[from - 1][2] : 0;
    },
  };
}

/** Return the canonical combining class of a character: 0 for letters, other numbers for marks. */
export function combiningClass(code) {
  return code < 0x300 ? 0 : CLASSES.get(code);
}

const SYLLABLES = 0xac00;
const HANGUL = { first: 0x1100, vowel: 0x1161, last: 0x11a7, firsts: 19, vowels: 21, lasts: 28 };

/** Return the code points of a decomposed character, `compatible` for the forms NFKD and NFKC. */
export function decompose(code, compatible) {
  const syllable = code - SYLLABLES;
  if (syllable >= 0 && syllable < HANGUL.firsts * HANGUL.vowels * HANGUL.lasts) {
    const last = syllable % HANGUL.lasts;
    const out = [HANGUL.first + Math.floor(syllable / (HANGUL.vowels * HANGUL.lasts)), HANGUL.vowel + (Math.floor(syllable / HANGUL.lasts) % HANGUL.vowels)];
    return last ? [...out, HANGUL.last + last] : out;
  }
  return (compatible && NFKD.get(code)) || NFD.get(code) || [code];
}

/** Return the character that a letter and what follows it are joined to; -1 where there is none. */
export function compose(first, second) {
  const lead = first - HANGUL.first;
  const vowel = second - HANGUL.vowel;
  if (lead >= 0 && lead < HANGUL.firsts && vowel >= 0 && vowel < HANGUL.vowels) return SYLLABLES + (lead * HANGUL.vowels + vowel) * HANGUL.lasts;
  const syllable = first - SYLLABLES;
  const last = second - HANGUL.last;
  if (syllable >= 0 && syllable < HANGUL.firsts * HANGUL.vowels * HANGUL.lasts && syllable % HANGUL.lasts === 0 && last > 0 && last < HANGUL.lasts) return first + last;
  return COMPOSED.get(`${first},${second}`) ?? -1;
}

/** Return the inside of a regular expression's class for a class or category of the library; undefined where the tables have none of this name. */
export function patternClass(name) {
  const plain = name.toLowerCase().replace(/[_ ]/g, "");
  if (plain === "alnum") return patternClass("alpha") + patternClass("nd");
  const table = tables[`regex_${plain}`] ?? tables[`script_${plain}`];
  const wanted = CATEGORIES.flatMap((one, i) => (one.toLowerCase() === plain || one[0].toLowerCase() === plain ? [i + 1] : []));
  if (!table && !wanted.length) return undefined;
  const hex = (code) => `\\u{${code.toString(16)}}`;
  const runs = table ?? tables.category.filter(([, , value]) => wanted.includes(value));
  return runs.map(([first, last]) => (first === last ? hex(first) : `${hex(first)}-${hex(last)}`)).join("") + (plain === "c" ? unassigned() : "");
}

/** Return the inside of a class of the code points without a category, which `C` has too. */
function unassigned() {
  let next = 0;
  let out = "";
  for (const [first, last] of [...tables.category, [0xd800, 0xdfff], [0x110000, 0]].sort((a, b) => a[0] - b[0])) {
    if (first > next) out += `\\u{${next.toString(16)}}-\\u{${(first - 1).toString(16)}}`;
    next = last + 1;
  }
  return out;
}
