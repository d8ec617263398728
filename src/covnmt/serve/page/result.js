// The results of one model: the translation and, for every sentence, its words, remarks, a check
// of another translation, decoding steps and heat map.

import { checkPanel } from "./check.js";
import { element, languageAttributes } from "./dom.js";
import { HeatMap } from "./heatmap.js";
import { WordLists } from "./words.js";

const STEP_MS = 350;

/** The panel of a model; `bounds` has its `min_attention` and `max_coverage`.
    `check(source, target, signal)` checks a translation of a sentence. */
export function resultPanel({ model, text, sentences }, languages, bounds, check) {
  const several = sentences.length > 1;
  return element(
    "section",
    { class: "result", "aria-label": `Translation by ${model}` },
    element("h2", {}, model),
    element("p", { class: "translation", ...languageAttributes(languages.target), tabindex: "0" }, text),
    // a line without words, of dashes for example, is in the text but has no panel
    ...sentences.map((sentence, n) => sentence.source_tokens.length
      ? sentencePanel({ ...sentence, languages, bounds }, model, several ? n + 1 : 0, check) : ""),
  );
}

/** A translation that is still coming; `update(sentence number, text)` sets a part of it. */
export function draftPanel(model, languages) {
  const text = element("p", { class: "translation", ...languageAttributes(languages.target) });
  const node = element(
    "section",
    { class: "result draft", "aria-busy": "true", "aria-label": `Unfinished translation by ${model}` },
    element("h2", {}, model),
    text,
  );
  const drafts = [];
  const update = (sentence, partial) => {
    drafts[sentence] = partial;
    text.textContent = drafts.join("\n");
  };
  return { node, update };
}

function sentencePanel(sentence, model, number, check) {
  const highlight = (side, position) => {
    words.highlight(side, position);
    map.highlight(side, position);
  };
  const words = new WordLists(sentence, highlight);
  const map = new HeatMap(sentence, number ? `${model}-${number}` : model, highlight);
  return element(
    "article",
    { class: "sentence" },
    number ? element("h3", {}, `Sentence ${number}`) : "",
    words.node,
    remarkList(sentence, highlight),
    checkPanel(sentence, words, (target, signal) => check(sentence.source, target, signal)),
    stepper(sentence, words),
    map.node,
  );
}

function remarkList(sentence, highlight) {
  if (!sentence.remarks.length) return element("p", { class: "no-remarks" }, "Nothing to remark on.");
  const items = sentence.remarks.map((remark) => {
    const tokens = remark.side === "source" ? sentence.source_tokens : sentence.tokens;
    return element(
      "li",
      {
        class: remark.kind.replace(" ", "-"),
        onmouseenter: () => highlight(remark.side, remark.position),
        onmouseleave: () => highlight(null, 0),
      },
      element("b", {}, remark.kind),
      " ",
      element("bdi", {}, tokens[remark.position]),
      ` (${remark.side} word ${remark.position + 1}): ${remark.reason}`,
    );
  });
  const title = `${items.length} ${items.length === 1 ? "remark" : "remarks"}`;
  const list = element("ul", { class: "remarks" }, ...items);
  return element("details", { open: items.length <= 4 }, element("summary", {}, title), list);
}

/** A slider over the decoding steps; coverage fills up with every target word. */
function stepper(sentence, words) {
  const last = sentence.tokens.length;
  const progress = element("output", {});
  const slider = element("input", {
    type: "range", min: 0, max: last, value: last, "aria-label": "Target words so far",
  });
  let timer = null;
  const show = () => {
    words.showStep(Number(slider.value));
    progress.textContent = `${slider.value} of ${last} words`;
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
  return element("div", { class: "row steps" }, element("span", {}, "Decoding"), play, slider, progress);
}
