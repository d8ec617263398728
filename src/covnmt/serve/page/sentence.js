// A translated sentence in whole words. The server sends tokens, which may be parts of words; here
// they are joined, found in the text, and their attention, coverage and remarks summed up.

const SPACE = "\u2581";  // what sentencepiece writes for a space
const BYTE = /^<0x([0-9A-F]{2})>$/;
const LETTER = /[\p{L}\p{M}\p{N}]/u;
// Scripts without spaces between words: there a token is shown as a word.
const UNSPACED = new RegExp(
  "[\\p{sc=Hani}\\p{scx=Hira}\\p{scx=Kana}\\p{sc=Thai}\\p{sc=Laoo}\\p{sc=Khmr}\\p{sc=Mymr}\\p{sc=Tibt}]", "u");
const INSIDE_WORD = /^[-'’·]$/u;
const INSIDE_NUMBER = /^[.,:]$/;
const MAX_SKIP = 40;  // characters of a text between two words that were found in it

/** A side of a sentence: its text and words, each with its tokens from `start` up to `end`, and,
    where it was found, its place in the text from `from` up to `to`. */
export function readSide(text, tokens, lang) {
  const words = locate(joinTokens(tokens), text);
  const wordOf = words.flatMap((word, k) => Array(word.end - word.start).fill(k));
  return { text, lang, words, wordOf };
}

/** A sentence as the server sends it, in words. */
export function readSentence(content, languages, bounds) {
  const source = readSide(content.source, content.source_tokens, languages.source);
  const target = readSide(content.text, content.tokens, languages.target);
  const { alignment, fertility } = content;
  // [I, J] in words: attention that all tokens of a target word paid to all tokens of a source word
  const attention = target.words.map((to) => source.words.map((from) => {
    let sum = 0;
    for (let i = to.start; i < to.end; i++) sum += sumOf(alignment[i], from.start, from.end);
    return sum;
  }));
  // how much attention a source word should get in all: 1 for each of its tokens, or their fertility
  const expected = source.words.map(({ start, end }) =>
    fertility ? sumOf(fertility, start, end) : end - start);
  const sentence = { source, target, attention, expected, hasFertility: Boolean(fertility), bounds,
    score: content.score };
  // at the end it also has what the end of the sentence attended to
  sentence.coverage = source.words.map(({ start, end }, j) =>
    sumOf(content.coverage, start, end, (k) => fertility?.[k] ?? 1) / (expected[j] || 1));
  sentence.places = readPlaces(content.remarks ?? [], sentence);
  return sentence;
}

function sumOf(values, start, end, factor = () => 1) {
  let sum = 0;
  for (let k = start; k < end; k++) sum += values[k] * factor(k);
  return sum;
}

/** The share of its attention, from 0 to 1, that a target word pays to a source word. */
export function weight({ attention, target }, i, j) {
  return attention[i][j] / (target.words[i].end - target.words[i].start);
}

/** Attention that every source word got from the first target words, over what it should get. */
export function coverageAfter({ source, target, attention, expected, coverage }, steps) {
  if (steps === target.words.length) return coverage;
  return source.words.map((_, j) =>
    attention.slice(0, steps).reduce((sum, row) => sum + row[j], 0) / (expected[j] || 1));
}

/** Whether a source word received too little attention, enough or too much. */
export function coverageLevel({ source, expected, bounds }, j, coverage) {
  const { start, end } = source.words[j];
  if (coverage * expected[j] / (end - start) < bounds.min_attention) return "little";
  return coverage > bounds.max_coverage ? "much" : "enough";
}

/** The words that hold these tokens, and at least one letter or digit: nobody misses a comma. */
export function wordsAt(side, start, end) {
  return [...new Set(side.wordOf.slice(start, end))].filter((k) => LETTER.test(side.words[k].text));
}

/** Words as they are written, with what stands between them. */
export function phrase(side, positions) {
  const words = positions.map((k) => side.words[k]);
  const [first, last] = [words[0], words.at(-1)];
  const neighbors = words.length === positions.at(-1) - positions[0] + 1;
  if (neighbors && first.from !== undefined && last.to !== undefined) {
    return side.text.slice(first.from, last.to);
  }
  return words.map((word) => word.text).join(" ");
}

/** Remarks as places to look at. Neighboring words with the same remark are one place. */
function readPlaces(remarks, sentence) {
  const places = [];
  for (const { side, position, start = position, end = start + 1, kind, reason, message } of remarks) {
    if (!sentence[side]) continue;
    const words = wordsAt(sentence[side], start, end);
    if (!words.length) continue;
    const last = places.at(-1);
    const text = reason ?? message ?? "";
    if (last?.kind === kind && last.side === side && last.words.at(-1) + 1 >= words[0]) {
      last.words = [...new Set([...last.words, ...words])];
      continue;
    }
    places.push({ side, kind, reason: text, words });
  }
  return places;
}

/** Join tokens to words: subwords, digits of a number, and the bytes of a character. */
function joinTokens(tokens) {
  const bySpaces = tokens.some((token) => token.startsWith(SPACE));
  const words = [];
  let start = 0;  // of the next word: a space by itself belongs to it
  tokens.forEach((token, position) => {
    const last = words.at(-1);
    const bare = token.replaceAll(SPACE, " ").trim();
    if (!bare) return;
    const boundary = start < position || token.startsWith(SPACE) || !last;
    const goesOn = () => BYTE.test(token) ? last.bytes
      : bySpaces && joins(last.text, bare, tokens[position + 1]);
    if (!boundary && goesOn()) {
      last.text += bare;
      last.end = position + 1;
    } else words.push({ start, end: position + 1, text: bare, bytes: BYTE.test(token) });
    start = position + 1;
  });
  if (words.length) words.at(-1).end = tokens.length;
  return words.map(({ bytes, text, ...range }) =>
    ({ ...range, text: bytes ? spellBytes(text) : text }));
}

/** Whether a token continues the word before it. */
function joins(before, token, next) {
  const [last, first] = [[...before].at(-1), [...token][0]];
  if (UNSPACED.test(last) || UNSPACED.test(first)) return false;
  if (INSIDE_NUMBER.test(token)) return /\d/.test(last) && /^\d/.test(next ?? "");
  if (INSIDE_NUMBER.test(last)) return /^\d/.test(first) && before.length > 1;
  const inside = (character) => LETTER.test(character) || INSIDE_WORD.test(character);
  return inside(last) && inside(first) && LETTER.test(before);
}

function spellBytes(text) {
  const bytes = text.match(/[0-9A-F]{2}(?=>)/g).map((digits) => parseInt(digits, 16));
  return new TextDecoder().decode(new Uint8Array(bytes));
}

/** Find words in their text, one after the other. */
function locate(words, text) {
  const places = [...text].reduce(({ list, at }, character) => {
    if (character.trim()) list.push([at, at + character.length]);
    return { list, at: at + character.length };
  }, { list: [], at: 0 }).list;
  const lengths = words.map((word) => [...word.text].filter((character) => character.trim()).length);
  if (lengths.reduce((sum, length) => sum + length, 0) === places.length) {
    // the same characters, or others in their place: traditional ones for simplified ones
    let next = 0;
    return words.map((word, k) => {
      if (!lengths[k]) return word;
      const [first, last] = [places[next], places[next + lengths[k] - 1]];
      next += lengths[k];
      return { ...word, from: first[0], to: last[1], text: text.slice(first[0], last[1]) };
    });
  }
  let cursor = 0;
  return words.map((word) => {
    const from = text.indexOf(word.text, cursor);
    if (from < 0 || from > cursor + MAX_SKIP) return word;
    cursor = from + word.text.length;
    return { ...word, from, to: cursor };
  });
}
