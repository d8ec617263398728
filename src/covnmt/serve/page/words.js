// Words on the page: a line of text with marks in it, and what lights up when one is pointed at.

import { element, languageAttributes } from "./dom.js";
import { weight } from "./sentence.js";

// Attention below this highlights nothing.
const MIN_HIGHLIGHT = 0.05;

/** Knows where on the page the words of a sentence are; pointing at one highlights its partners. */
export class Highlighter {
  constructor(sentence) {
    this.sentence = sentence;
    this.nodes = { source: [], target: [] };  // elements of every word
    this.listeners = [];
  }

  /** Let an element stand for a word. */
  register(side, k, node) {
    (this.nodes[side][k] ??= []).push(node);
    Object.assign(node.dataset, { side, k });
    return node;
  }

  /** Let pointing at the words inside an element highlight; one listener does for all of them. */
  watch(node) {
    const point = ({ target }) => {
      const { side, k } = target.closest("[data-side]")?.dataset ?? {};
      this.show(side ?? null, Number(k ?? 0));
    };
    for (const name of ["mouseover", "focusin"]) node.addEventListener(name, point);
    for (const name of ["mouseleave", "focusout"]) node.addEventListener(name, () => this.show(null, 0));
    return node;
  }

  /** Highlight a word and its partners; side null highlights nothing. */
  show(side, k) {
    this.nodes.source.forEach((nodes, j) => light(nodes, this.strength("source", j, side, k)));
    this.nodes.target.forEach((nodes, i) => light(nodes, this.strength("target", i, side, k)));
    for (const listener of this.listeners) listener(side, k);
  }

  strength(mine, index, side, k) {
    if (side === null) return 0;
    if (mine === side) return index === k ? 2 : 0;
    return mine === "source" ? weight(this.sentence, k, index) : weight(this.sentence, index, k);
  }
}

function light(nodes, strength) {
  for (const node of nodes) {
    node.classList.toggle("selected", strength === 2);
    node.classList.toggle("highlighted", strength >= MIN_HIGHLIGHT);
    node.style.setProperty("--weight", strength >= MIN_HIGHLIGHT ? Math.min(strength, 1).toFixed(2) : "0");
  }
}

/** A side of a sentence as running text. `marks` are [words, kind, number] with words side by side;
    `wrap(k, text)` makes the element of a word. */
export function textLine(side, attributes, marks, wrap = null) {
  const line = element("p", { ...languageAttributes(side.lang), ...attributes });
  const markOf = new Map(marks.flatMap((mark) => mark[0].map((k) => [k, mark])));
  let cursor = 0;
  let box = line;
  let current = null;
  side.words.forEach((word, k) => {
    if (word.from === undefined || word.from < cursor) return;
    const mark = markOf.get(k) ?? null;
    const gap = side.text.slice(cursor, word.from);
    if (mark !== current) {
      line.append(gap);
      box = mark ? line.appendChild(placeMark(mark)) : line;
      current = mark;
    } else box.append(gap);
    const text = side.text.slice(word.from, word.to);
    box.append(wrap ? wrap(k, text) : text);
    cursor = word.to;
  });
  line.append(side.text.slice(cursor));
  return line;
}

function placeMark([, kind, number]) {
  return element("mark", { class: kindClass(kind), "data-number": number ?? null });
}

/** The class of a kind of remark; the server may know more kinds than this page. */
export function kindClass(kind) {
  return String(kind).toLowerCase().replace(/[^a-z]+/g, "-");
}
