// The words of a sentence and of its translation; pointing at one highlights its partners.

import { element, languageAttributes } from "./dom.js";

// Attention below this highlights nothing.
const MIN_HIGHLIGHT = 0.05;

/** Whether a source word received too little attention, enough or too much. */
export function coverageLevel(coverage, fertility, bounds) {
  if (coverage * (fertility ?? 1) < bounds.min_attention) return "little";
  return coverage > bounds.max_coverage ? "much" : "enough";
}

/** Attention that every source word has received after the first `steps` target words. */
export function coverageAfter(sentence, steps) {
  return sentence.source_tokens.map((_, j) => {
    const received = sentence.alignment.slice(0, steps).reduce((sum, row) => sum + row[j], 0);
    return received / (sentence.fertility?.[j] ?? 1);
  });
}

/** Both sides of a sentence; `highlight(side, position)` highlights partners, side null nothing. */
export class WordLists {
  constructor(sentence, onHighlight) {
    this.sentence = sentence;
    this.onHighlight = onHighlight;
    this.omitted = new Set(); // source positions that a checked translation leaves out
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
    const list = element("ol", { class: "side", ...languageAttributes(lang), "aria-label": name }, ...words);
    list.addEventListener("keydown", (event) => this.moveFocus(event, words));
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
    if (remark) parts[0].append(element("sup", { "aria-hidden": "true" }, remarkSymbol(remark.kind)));
    return element(
      "li",
      {
        class: `word ${side}${remark ? ` flagged ${remark.kind.replace(" ", "-")}` : ""}`,
        tabindex: "-1",
        title: remark ? `${remark.kind}: ${remark.reason}` : null,
        onmouseenter: () => this.onHighlight(side, position),
        onmouseleave: () => this.onHighlight(null, 0),
        onfocus: () => this.onHighlight(side, position),
        onblur: () => this.onHighlight(null, 0),
      },
      ...parts,
    );
  }

  moveFocus(event, words) {
    const right = getComputedStyle(event.currentTarget).direction === "rtl" ? -1 : 1;
    const steps = { ArrowRight: right, ArrowLeft: -right, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const current = words.indexOf(document.activeElement);
    const next = Math.min(Math.max(current + step, 0), words.length - 1);
    words.forEach((word, k) => word.setAttribute("tabindex", k === next ? "0" : "-1"));
    words[next].focus();
  }

  highlight(side, position) {
    const { alignment } = this.sentence;
    const weight = (i, j) => (side === null ? 0 : alignment[i][j]);
    this.source.forEach((word, j) => {
      const selected = side === "source" && j === position;
      setHighlight(word, selected ? 1 : side === "target" ? weight(position, j) : 0, selected);
    });
    this.target.forEach((word, i) => {
      const selected = side === "target" && i === position;
      setHighlight(word, selected ? 1 : side === "source" ? weight(i, position) : 0, selected);
    });
  }

  /** Mark the source words of these omissions, and no others. */
  markOmitted(omissions) {
    this.omitted = new Set(omissions.flatMap(({ start, end }) => range(start, end)));
    this.source.forEach((word, j) => word.classList.toggle("omitted", this.omitted.has(j)));
    this.showStep(this.steps);
  }

  showStep(steps) {
    this.steps = steps;
    const coverage = coverageAfter(this.sentence, steps);
    this.source.forEach((word, j) => {
      const fertility = this.sentence.fertility?.[j];
      const fill = word.querySelector(".fill");
      fill.style.width = `${Math.min(coverage[j] / 2, 1) * 100}%`;
      fill.className = `fill ${coverageLevel(coverage[j], fertility, this.sentence.bounds)}`;
      const expected = fertility === undefined ? "" : `, fertility ${fertility.toFixed(2)}`;
      const remark = word.title ? `, ${word.title}` : "";
      const omission = this.omitted.has(j) ? ", probably left out of the checked translation" : "";
      const description = `coverage ${coverage[j].toFixed(2)}${expected}${remark}${omission}`;
      word.setAttribute("aria-label", `${this.sentence.source_tokens[j]}, ${description}`);
    });
    this.target.forEach((word, i) => {
      word.classList.toggle("upcoming", i >= steps);
      word.classList.toggle("newest", i === steps - 1 && steps < this.target.length);
    });
  }
}

function range(start, end) {
  return Array.from({ length: end - start }, (_, k) => start + k);
}

function remarkSymbol(kind) {
  return { "left out": "∅", "too much": "+", "said twice": "2×" }[kind];
}

function setHighlight(word, weight, selected) {
  word.classList.toggle("selected", selected);
  word.classList.toggle("highlighted", weight >= MIN_HIGHLIGHT);
  word.style.setProperty("--weight", weight >= MIN_HIGHLIGHT ? weight.toFixed(2) : "0");
}
