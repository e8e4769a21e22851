// Regular expressions of tokenizer.json (Oniguruma's) as those of JavaScript with the flag `v`; what has no equal there is refused.

import { patternClass } from "./unicode.js";

const compiled = new Map();

/**
 * Compile the pattern of a step.
 * @param {{ String?: string, Regex?: string }} pattern As tokenizer.json has it.
 * @param {string} where The step, for messages.
 * @returns {(piece: import("./steps.js").Piece) => number[][]} A function that returns the matches as pairs of indexes of code points.
 */
export function compilePattern(pattern, where) {
  const literal = pattern.String?.replace(/[\^$\\.*+?()[\]{}|/]/g, "\\$&");
  const { source, marks } = literal === undefined ? translate(pattern.Regex, where) : { source: literal, marks: [] };
  if (!source) throw new Error(`tokenizer.json: ${where}: an empty pattern is not supported.`);
  try {
    if (!compiled.has(source)) compiled.set(source, new RegExp(source, marks.length ? "dgv" : "gv"));
  } catch (error) {
    throw new Error(`tokenizer.json: ${where}: the pattern ${pattern.Regex} is not supported: ${error.message}`);
  }
  const expression = compiled.get(source);
  const startOf = (match) => Math.max(match.index, ...marks.map((group) => match.indices[group]?.[0] ?? 0));
  return (piece) => {
    let last = -1; // an empty match right behind another one is none
    const matches = [];
    for (const match of piece.text.matchAll(expression)) {
      const end = match.index + match[0].length;
      if (match[0].length > 0 || end !== last) matches.push([startOf(match), end]);
      last = end;
    }
    if (!matches.length) return [];
    const index = new Map(); // from UTF-16 to code points
    let at = 0;
    piece.codes.forEach((code, i) => {
      index.set(at, i);
      at += code > 0xffff ? 2 : 1;
    });
    index.set(at, piece.length);
    return matches.map(([from, to]) => [index.get(from), index.get(to)]);
  };
}

/** Translate a pattern: classes of Unicode, possessive quantifiers and atomic groups (as a look-ahead and a reference to it). */
function translate(pattern, where) {
  const refuse = (what) => {
    throw new Error(`tokenizer.json: ${where}: ${what} in the pattern ${pattern} is not supported.`);
  };
  let at = 0;
  let groups = 0;
  const marks = []; // groups where the match is to begin (\K)
  const take = (sticky) => {
    sticky.lastIndex = at;
    const found = sticky.exec(pattern);
    if (found) at += found[0].length;
    return found;
  };

  function alternatives() {
    let out = "";
    while (at < pattern.length && pattern[at] !== ")") {
      if (pattern[at] === "|") {
        out += "|";
        at++;
      } else out += quantified();
    }
    return out;
  }

  function quantified() {
    const before = groups;
    let atom = oneAtom();
    for (;;) {
      const found = take(/[*+?]|\{\d+(?:,\d*)?\}|\{,\d+\}/y);
      if (!found) return atom;
      const count = found[0].startsWith("{,") ? `{0${found[0].slice(1)}` : found[0];
      if (take(/\+/y)) {
        if (groups !== before) refuse("a possessive quantifier of a group");
        atom = `(?=(${atom}${count}))\\${++groups}`;
        atom = `(?:${atom})`;
      } else atom = `(?:${atom})${count}${take(/\?/y) ? "?" : ""}`;
    }
  }

  function oneAtom() {
    const open = take(/\((\?(?:[:=!>]|<[=!]|i:))?/y);
    if (open) {
      if (!open[1] && pattern[at] === "?") refuse("a named group or an option");
      if (open[1] === "?i:") refuse("an option");
      const number = open[1] === "?>" ? ++groups : 0;
      const inside = alternatives();
      if (pattern[at++] !== ")") refuse("a group without an end");
      if (number) return `(?:(?=(${inside}))\\${number})`;
      return `(${open[1] ?? "?:"}${inside})`;
    }
    if (pattern[at] === "[") return oneClass();
    const escaped = take(/\\(p\{\^?[^}]*\}|P\{[^}]*\}|u\{[^}]*\}|u[0-9a-fA-F]{4}|x\{[^}]*\}|x[0-9a-fA-F]{2}|.)/sy);
    if (escaped) return escape(escaped[1], false);
    const letter = String.fromCodePoint(pattern.codePointAt(at));
    at += letter.length;
    if (letter === "^") return "(?<=^|\\n)";
    if (letter === "$") return "(?=$|\\n)";
    if (letter === ".") return "[^\\n]";
    return literal(letter);
  }

  const inClass = (letter) => (/[()[\]{}/|&!#%,:;<=>@`~^$*+?.\\\-]/.test(letter) ? `\\${letter}` : letter);
  const literal = (letter) => (/[\^$\\.*+?()[\]{}|/]/.test(letter) ? `\\${letter}` : letter);

  function oneClass() {
    at++;
    const negated = take(/\^/y) ? "^" : "";
    const operands = [""];
    for (let first = true; first || pattern[at] !== "]"; first = false) {
      if (at >= pattern.length) refuse("a class without an end");
      const named = take(/\[:(\^?)(\w+):\]/y);
      if (named) operands[operands.length - 1] += property(named[2], named[1] === "^");
      else if (take(/&&/y)) operands.push("");
      else operands[operands.length - 1] += pattern[at] === "[" ? oneClass() : classPart();
    }
    at++;
    return operands.length > 1 ? `[${negated}${operands.map((one) => `[${one}]`).join("&&")}]` : `[${negated}${operands[0]}]`;
  }

  function classPart() {
    const escaped = take(/\\(p\{\^?[^}]*\}|P\{[^}]*\}|u\{[^}]*\}|u[0-9a-fA-F]{4}|x\{[^}]*\}|x[0-9a-fA-F]{2}|.)/sy);
    if (escaped) return escape(escaped[1], true);
    const letter = String.fromCodePoint(pattern.codePointAt(at));
    at += letter.length;
    if (letter === "-") return pattern[at] === "]" || pattern[at - 2] === "[" ? "\\-" : "-";
    return inClass(letter);
  }

  function property(name, negated) {
    const inside = patternClass(name);
    if (inside === undefined) return refuse(`the class ${name}`);
    return `[${negated ? "^" : ""}${inside}]`;
  }

  function escape(what, inside) {
    const kind = what[0];
    if (kind === "p" || kind === "P") {
      const name = what.slice(2, -1);
      return property(name.replace(/^\^/, ""), (kind === "P") !== name.startsWith("^"));
    }
    if (kind === "u" || kind === "x") return `\\u{${what.slice(1).replace(/[{}]/g, "")}}`;
    const short = { s: "space", w: inside ? "classword" : "word", d: "nd" }[what.toLowerCase()];
    if (short) return property(short, what < "a");
    if (!inside && what === "b") return `(?:(?<=${property("word")})(?!${property("word")})|(?<!${property("word")})(?=${property("word")}))`;
    if (!inside && what === "K") {
      marks.push(++groups);
      return "()";
    }
    if (!inside && what === "A") return "(?<![^])";
    if (!inside && what === "z") return "(?![^])";
    if (/[rntfv]/.test(what)) return `\\${what}`;
    if (/[A-Za-z0-9]/.test(what)) return refuse(`\\${what}`);
    return inside ? inClass(what) : literal(what);
  }

  const source = alternatives();
  if (at < pattern.length) refuse("a bracket");
  return { source, marks };
}
