// The words of a sentence and of its translation, and the light between them.

import { element, written } from "./dom.js";

// Attention below this lights nothing up.
const FAINT = 0.05;
// The same bounds as the server's remarks.
const LITTLE = 0.2;
const MUCH_OF_FERTILITY = 1.75;
const MUCH_ATTENTION = 4;

/** too little, enough or too much */
export function level(coverage, fertility) {
  const received = coverage * (fertility ?? 1);
  if (received < LITTLE) return "little";
  return coverage > (fertility === undefined ? MUCH_ATTENTION : MUCH_OF_FERTILITY)
    ? "much"
    : "enough";
}

/** Attention that every source word has received after the first `steps` target words. */
export function coverageAfter(sentence, steps) {
  return sentence.source_tokens.map((_, j) => {
    const received = sentence.alignment.slice(0, steps).reduce((sum, row) => sum + row[j], 0);
    return received / (sentence.fertility?.[j] ?? 1);
  });
}

/** Both sides of a sentence; `light(side, position)` shows partners, null puts the light out. */
export class Words {
  constructor(sentence, onLight) {
    this.sentence = sentence;
    this.onLight = onLight;
    this.leftOut = new Set(); // source words, by a check of another translation
    this.source = sentence.source_tokens.map((token, j) => this.sourceWord(token, j));
    this.target = sentence.tokens.map((token, i) => this.targetWord(token, i));
    this.node = element(
      "div",
      { class: "words" },
      this.side("Source", this.source, sentence.languages.source),
      this.side("Translation", this.target, sentence.languages.target),
    );
    this.showStep(sentence.tokens.length);
  }

  side(name, words, lang) {
    const list = element("ol", { class: "side", ...written(lang), "aria-label": name }, ...words);
    list.addEventListener("keydown", (event) => this.move(event, words));
    words[0]?.setAttribute("tabindex", "0");
    return element("div", {}, element("h4", {}, name), list);
  }

  sourceWord(token, j) {
    const fertility = this.sentence.fertility?.[j];
    const parts = [element("span", { class: "token" }, token)];
    parts.push(element("span", { class: "bar" }, element("span", { class: "fill" })));
    if (fertility !== undefined) {
      parts.push(element("span", { class: "fertility" }, `×${fertility.toFixed(1)}`));
    }
    return this.word("source", j, parts);
  }

  targetWord(token, i) {
    return this.word("target", i, [element("span", { class: "token" }, token)]);
  }

  word(side, position, parts) {
    const remark = this.sentence.remarks.find((r) => r.side === side && r.position === position);
    if (remark) parts[0].append(element("sup", { "aria-hidden": "true" }, mark(remark.kind)));
    return element(
      "li",
      {
        class: `word ${side}${remark ? ` flagged ${remark.kind.replace(" ", "-")}` : ""}`,
        tabindex: "-1",
        title: remark ? `${remark.kind}: ${remark.reason}` : null,
        onmouseenter: () => this.onLight(side, position),
        onmouseleave: () => this.onLight(null, 0),
        onfocus: () => this.onLight(side, position),
        onblur: () => this.onLight(null, 0),
      },
      ...parts,
    );
  }

  move(event, words) {
    const right = getComputedStyle(event.currentTarget).direction === "rtl" ? -1 : 1;
    const steps = { ArrowRight: right, ArrowLeft: -right, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const now = words.indexOf(document.activeElement);
    const next = Math.min(Math.max(now + step, 0), words.length - 1);
    words.forEach((word, k) => word.setAttribute("tabindex", k === next ? "0" : "-1"));
    words[next].focus();
  }

  light(side, position) {
    const { alignment } = this.sentence;
    const weight = (i, j) => (side === null ? 0 : alignment[i][j]);
    this.source.forEach((word, j) => {
      const own = side === "source" && j === position;
      shine(word, own ? 1 : side === "target" ? weight(position, j) : 0, own);
    });
    this.target.forEach((word, i) => {
      const own = side === "target" && i === position;
      shine(word, own ? 1 : side === "source" ? weight(i, position) : 0, own);
    });
  }

  /** Mark the source words that a check found; none takes the marks away. */
  markLeftOut(found) {
    this.leftOut = new Set(found.flatMap(({ start, end }) => range(start, end)));
    this.source.forEach((word, j) => word.classList.toggle("missed", this.leftOut.has(j)));
    this.showStep(this.steps);
  }

  showStep(steps) {
    this.steps = steps;
    const coverage = coverageAfter(this.sentence, steps);
    this.source.forEach((word, j) => {
      const fertility = this.sentence.fertility?.[j];
      const fill = word.querySelector(".fill");
      fill.style.width = `${Math.min(coverage[j] / 2, 1) * 100}%`;
      fill.className = `fill ${level(coverage[j], fertility)}`;
      const expected = fertility === undefined ? "" : `, fertility ${fertility.toFixed(2)}`;
      const remark = word.title ? `, ${word.title}` : "";
      const missed = this.leftOut.has(j) ? ", probably left out of the checked translation" : "";
      const told = `coverage ${coverage[j].toFixed(2)}${expected}${remark}${missed}`;
      word.setAttribute("aria-label", `${this.sentence.source_tokens[j]}, ${told}`);
    });
    this.target.forEach((word, i) => {
      word.classList.toggle("unsaid", i >= steps);
      word.classList.toggle("newest", i === steps - 1 && steps < this.target.length);
    });
  }
}

function range(start, end) {
  return Array.from({ length: end - start }, (_, k) => start + k);
}

function mark(kind) {
  return { "left out": "∅", "too much": "+", "said twice": "2×" }[kind];
}

function shine(word, weight, own) {
  word.classList.toggle("own", own);
  word.classList.toggle("lit", weight >= FAINT);
  word.style.setProperty("--weight", weight >= FAINT ? weight.toFixed(2) : "0");
}
