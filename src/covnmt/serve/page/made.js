// How a translation was made: its words with their coverage, step by step, and the heat map.

import { count, element, languageAttributes, lazyDetails } from "./dom.js";
import { HeatMap } from "./heatmap.js";
import { coverageAfter, coverageLevel } from "./sentence.js";

const STEP_MS = 350;

/** What the box "How it was made" holds. */
export function howItWasMade(sentence, highlighter, name, model) {
  const words = new WordLists(sentence, highlighter);
  const drawing = lazyDetails({ class: "heat" }, "Heat map",
    () => new HeatMap(sentence, name, highlighter).parts);
  const score = Number.isFinite(sentence.score) ? `, score ${sentence.score.toFixed(2)}` : "";
  const facts = `Model ${model.name}, beam ${model.beam}${score}.`;
  const fertility = sentence.hasFertility
    ? ", over the number of target words that the model expects of it (after ×)"
    : " in all; if the model reads it in parts, their average";
  return [
    words.node,
    stepper(sentence, words),
    element("p", { class: "legend" },
      `The bar under a source word is its coverage: the attention it got${fertility}. The line is at 1. `,
      swatch("little"), " too little, ", swatch("enough"), " enough, ", swatch("much"), " too much. ",
      "Point at a word, or move to it with Tab and the arrow keys, to see what it is aligned with."),
    element("p", { class: "legend" }, facts),
    drawing,
  ];
}

function swatch(level) {
  return element("span", { class: `swatch ${level}` });
}

/** Both sides of a sentence as lists of words, the source words with bars. */
class WordLists {
  constructor(sentence, highlighter) {
    this.sentence = sentence;
    this.highlighter = highlighter;
    this.source = this.words("source", (word, j) => [
      element("span", { class: "bar" }, element("span", { class: "fill" })),
      ...sentence.hasFertility
        ? [element("span", { class: "fertility" }, `×${sentence.expected[j].toFixed(1)}`)] : []]);
    this.target = this.words("target", () => []);
    this.node = element("div", { class: "words" },
      this.side("Source", this.source, sentence.source.lang),
      this.side("Translation", this.target, sentence.target.lang));
    this.showStep(sentence.target.words.length);
  }

  words(side, extras) {
    return this.sentence[side].words.map((word, k) => this.highlighter.register(side, k,
      element("li", { class: `word ${side}`, tabindex: k ? "-1" : "0" },
        element("span", { class: "token" }, word.text), ...extras(word, k))));
  }

  side(name, words, lang) {
    const attributes = { class: "side", ...languageAttributes(lang), "aria-label": name };
    const list = element("ol", attributes, ...words);
    list.addEventListener("keydown", (event) => moveFocus(event, words));
    return element("div", {}, element("h3", {}, name), list);
  }

  showStep(steps) {
    const coverage = coverageAfter(this.sentence, steps);
    this.source.forEach((word, j) => {
      const fill = word.querySelector(".fill");
      fill.style.width = `${Math.min(coverage[j] / 2, 1) * 100}%`;
      fill.className = `fill ${coverageLevel(this.sentence, j, coverage[j])}`;
      const fertility = this.sentence.hasFertility
        ? `, fertility ${this.sentence.expected[j].toFixed(2)}` : "";
      const text = this.sentence.source.words[j].text;
      word.setAttribute("aria-label", `${text}, coverage ${coverage[j].toFixed(2)}${fertility}`);
    });
    this.target.forEach((word, i) => {
      word.classList.toggle("upcoming", i >= steps);
      word.classList.toggle("newest", i === steps - 1 && steps < this.target.length);
    });
  }
}

function moveFocus(event, words) {
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

/** A slider over the words of the translation; coverage fills up with every one. */
function stepper(sentence, words) {
  const last = sentence.target.words.length;
  const progress = element("output", {});
  const slider = element("input", {
    type: "range", min: 0, max: last, value: last, "aria-label": "Target words so far",
  });
  let timer = null;
  const show = () => {
    words.showStep(Number(slider.value));
    progress.textContent = `${slider.value} of ${count(last, "word")}`;
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  const advance = () => {
    slider.stepUp();
    show();
    if (Number(slider.value) >= last) stop();
  };
  const play = element("button", { type: "button", onclick: () => {
    if (timer) return stop();
    if (Number(slider.value) >= last) slider.value = 0;
    show();
    timer = setInterval(advance, STEP_MS);
    play.textContent = "Pause";
  } }, "Play");
  slider.addEventListener("input", () => {
    stop();
    show();
  });
  show();
  return element("div", { class: "row steps" },
    element("span", {}, "Word by word"), play, slider, progress);
}
