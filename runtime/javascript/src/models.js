// Models of tokenizer.json: WordPiece, BPE, Unigram and WordLevel cut a word into tokens.

/** @typedef {{ id: number, start: number, end: number }} Token A token with the characters of the word that it covers. */
/** @typedef {{ ids: Map<string, number>, names: string[], tokenize: (word: string[]) => Token[] }} Model */

const encoder = new TextEncoder();
const NO_MERGE = [Infinity, -1]; // rank and result

/** Return the model of a tokenizer.json. @returns {Model} */
export function openModel(model) {
  const type = model.type ?? (Array.isArray(model.vocab) ? "Unigram" : model.merges ? "BPE" : "WordPiece");
  const entries = Array.isArray(model.vocab) ? model.vocab.map(([name], id) => [name, id]) : Object.entries(model.vocab);
  const ids = new Map(entries);
  const names = [];
  for (const [name, id] of entries) names[id] = name;
  const makers = { WordPiece: wordPiece, BPE: bpe, Unigram: unigram, WordLevel: wordLevel };
  if (!makers[type]) throw new Error(`tokenizer.json: model: the type '${type}' is not supported.`);
  return { ids, names, tokenize: makers[type](model, ids) };
}

/** Return the id of the piece that unknown words have. */
function unknownId(model, ids) {
  const id = ids.get(model.unk_token);
  if (id === undefined) throw new Error(`tokenizer.json: model: the vocabulary does not have the unknown token '${model.unk_token}'.`);
  return id;
}

function wordLevel(model, ids) {
  const unknown = unknownId(model, ids);
  return (word) => [{ id: ids.get(word.join("")) ?? unknown, start: 0, end: word.length }];
}

/** Cut a word into the longest pieces from its start on; else the word is unknown as a whole. */
function wordPiece(model, ids) {
  const unknown = unknownId(model, ids);
  const prefix = model.continuing_subword_prefix ?? "##";
  const most = model.max_input_chars_per_word ?? 100;
  let longest = 0;
  for (const name of ids.keys()) longest = Math.max(longest, name.length);
  return (word) => {
    const whole = [{ id: unknown, start: 0, end: word.length }];
    if (word.length > most) return whole;
    const out = [];
    for (let start = 0; start < word.length; ) {
      let end = Math.min(word.length, start + longest);
      let id;
      for (; end > start; end--) {
        id = ids.get((start ? prefix : "") + word.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return whole;
      out.push({ id, start, end });
      start = end;
    }
    return out;
  };
}

/** Return the ids of the pieces that stand for the bytes of a character, such as <0x41>; null where one is missing. */
function byteIds(ids, text) {
  const out = Array.from(encoder.encode(text), (byte) => ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`));
  return out.every((id) => id !== undefined) ? out : null;
}

/** Cut a word into characters and join neighbours in the order of the merges. */
function bpe(model, ids) {
  if (model.dropout) throw new Error("tokenizer.json: model: 'dropout' gives other tokens each time; save the tokenizer without it.");
  const unknown = model.unk_token == null ? -1 : unknownId(model, ids);
  const prefix = model.continuing_subword_prefix ?? "";
  const suffix = model.end_of_word_suffix ?? "";
  const merges = new Map();
  model.merges.filter((line) => typeof line !== "string" || !line.startsWith("#version")).forEach((line, rank) => {
    const [left, right] = typeof line === "string" ? line.split(" ") : line;
    merges.set(`${ids.get(left)},${ids.get(right)}`, [rank, ids.get(left + right.slice(prefix.length))]);
  });
  return (word) => {
    if (model.ignore_merges && ids.has(word.join(""))) return [{ id: ids.get(word.join("")), start: 0, end: word.length }];
    const symbols = spell(word);
    const mergeAt = (i) => (i >= 0 && i + 1 < symbols.length ? merges.get(`${symbols[i].id},${symbols[i + 1].id}`) ?? NO_MERGE : NO_MERGE);
    const found = symbols.map((_symbol, i) => mergeAt(i)); // of each symbol with the next one
    for (;;) {
      let best = -1;
      for (let i = 0, least = Infinity; i < found.length; i++) if (found[i][0] < least) [best, least] = [i, found[i][0]];
      if (best < 0) break;
      symbols.splice(best, 2, { id: found[best][1], size: symbols[best].size + symbols[best + 1].size });
      found.splice(best, 2, mergeAt(best));
      if (best > 0) found[best - 1] = mergeAt(best - 1);
    }
    return placed(symbols, word);
  };

  /** Return the token of each character with its size in bytes. What the vocabulary lacks is unknown, bytes, or left out. */
  function spell(word) {
    const out = [];
    let pending = 0; // bytes of unknown characters that are no symbol yet
    const flush = () => {
      if (pending) out.push({ id: unknown, size: pending });
      pending = 0;
    };
    word.forEach((letter, i) => {
      const size = encoder.encode(letter).length;
      const id = ids.get((i ? prefix : "") + letter + (i + 1 < word.length ? "" : suffix));
      const bytes = id === undefined && model.byte_fallback ? byteIds(ids, letter) : null;
      if (id !== undefined) {
        flush();
        out.push({ id, size });
      } else if (bytes) bytes.forEach((one) => out.push({ id: one, size: 1 }));
      else if (unknown >= 0) {
        if (!model.fuse_unk) flush();
        pending += size;
      }
    });
    flush();
    return out;
  }

  /** Return the tokens with their characters: the library counts bytes, also where characters were left out. */
  function placed(symbols, word) {
    const characters = word.flatMap((letter, i) => Array.from(encoder.encode(letter), () => i));
    let at = 0;
    return symbols.map(({ id, size }) => {
      const start = characters[at];
      at += size;
      return { id, start, end: characters[at - 1] + 1 };
    });
  }
}

/** Return a score as the library reads it: the digits as a number, then that divided by a power of ten, which rounds twice. */
function scoreAsRead(score) {
  const [, sign, whole, fraction = "", exponent = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?$/.exec(String(score));
  const power = Number(exponent) - fraction.length;
  const digits = Number(whole + fraction);
  const value = power >= 0 ? digits * Number(`1e${power}`) : digits / Number(`1e${-power}`);
  return sign ? -value : value;
}

/** Cut a word into the pieces with the largest sum of scores. */
function unigram(model, ids) {
  if (model.unk_id == null) throw new Error("tokenizer.json: model: 'unk_id' is missing: a Unigram model must name its unknown piece.");
  const scores = model.vocab.map(([, score]) => scoreAsRead(score));
  const least = scores.reduce((a, b) => Math.min(a, b), Infinity) - 10;
  let longest = 0;
  for (const name of ids.keys()) longest = Math.max(longest, name.length);
  const unknown = model.unk_id;
  return (word) => {
    const best = new Float64Array(word.length + 1);
    const from = new Int32Array(word.length + 1).fill(-1);
    const found = new Int32Array(word.length + 1);
    const offer = (start, end, score, id) => {
      if (from[end] >= 0 && best[start] + score <= best[end]) return;
      best[end] = best[start] + score;
      from[end] = start;
      found[end] = id;
    };
    for (let start = 0; start < word.length; start++) {
      let text = "";
      let single = false;
      for (let end = start + 1; end <= word.length && text.length < longest; end++) {
        text += word[end - 1];
        const id = ids.get(text);
        if (id === undefined) continue;
        offer(start, end, scores[id], id);
        single ||= end === start + 1;
      }
      if (!single) offer(start, start + 1, least, unknown);
    }
    const ends = [];
    for (let end = word.length; end > 0; end = from[end]) ends.unshift(end);
    return named(word, ends, found);
  };

  /** Return the tokens that end at `ends`; unknown neighbours become one, then the bytes of each where the model has these. */
  function named(word, ends, found) {
    const out = [];
    for (let i = 0, start = 0; i < ends.length; i++) {
      let end = ends[i];
      let id = found[end];
      if (id === unknown) {
        while (i + 1 < ends.length && found[ends[i + 1]] === unknown) end = ends[++i];
        const text = word.slice(start, end).join("");
        const bytes = model.byte_fallback && !ids.has(text) ? byteIds(ids, text) : null;
        if (bytes) bytes.forEach((one) => out.push({ id: one, start, end }));
        id = ids.get(text) ?? unknown;
        if (bytes) {
          start = end;
          continue;
        }
      }
      out.push({ id, start, end });
      start = end;
    }
    return out;
  }
}
