// What one model made of the text: the translation, its words, remarks, a check, steps, heat map.

import { checkPanel } from "./check.js";
import { element, written } from "./dom.js";
import { HeatMap } from "./heatmap.js";
import { Words } from "./words.js";

const STEP_MS = 350;

/** `check(source, target, signal)` asks what a translation of a sentence leaves out. */
export function resultPanel({ model, text, sentences }, languages, check) {
  const many = sentences.length > 1;
  return element(
    "section",
    { class: "result", "aria-label": `Translation by ${model}` },
    element("h2", {}, model),
    element("p", { class: "translation", ...written(languages.target), tabindex: "0" }, text),
    // a line of dashes is in the text, and there is nothing to say about it
    ...sentences.map((sentence, n) => sentence.source_tokens.length
      ? sentencePanel({ ...sentence, languages }, model, many ? n + 1 : 0, check) : ""),
  );
}

/** What there is of a translation that is still coming; `words(sentence number, text)` adds to it. */
export function draftPanel(model, languages) {
  const text = element("p", { class: "translation", ...written(languages.target) });
  const node = element(
    "section",
    { class: "result draft", "aria-busy": "true", "aria-label": `Unfinished translation by ${model}` },
    element("h2", {}, model),
    text,
  );
  const drafts = [];
  const words = (sentence, words) => {
    drafts[sentence] = words;
    text.textContent = drafts.join("\n");
  };
  return { node, words };
}

function sentencePanel(sentence, model, number, check) {
  const light = (side, position) => {
    words.light(side, position);
    map.light(side, position);
  };
  const words = new Words(sentence, light);
  const map = new HeatMap(sentence, number ? `${model}-${number}` : model, light);
  return element(
    "article",
    { class: "sentence" },
    number ? element("h3", {}, `Sentence ${number}`) : "",
    words.node,
    remarkList(sentence, light),
    checkPanel(sentence, words, (target, signal) => check(sentence.source, target, signal)),
    stepper(sentence, words),
    map.node,
  );
}

function remarkList(sentence, light) {
  if (!sentence.remarks.length) return element("p", { class: "calm" }, "Nothing to remark on.");
  const items = sentence.remarks.map((remark) => {
    const tokens = remark.side === "source" ? sentence.source_tokens : sentence.tokens;
    return element(
      "li",
      {
        class: remark.kind.replace(" ", "-"),
        onmouseenter: () => light(remark.side, remark.position),
        onmouseleave: () => light(null, 0),
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

/** A slider over the steps of decoding; coverage fills up with every word said. */
function stepper(sentence, words) {
  const last = sentence.tokens.length;
  const said = element("output", {});
  const slider = element("input", {
    type: "range", min: 0, max: last, value: last, "aria-label": "Words said so far",
  });
  let timer = null;
  const show = () => {
    words.showStep(Number(slider.value));
    said.textContent = `${slider.value} of ${last} words`;
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
  return element("div", { class: "row steps" }, element("span", {}, "Decoding"), play, slider, said);
}
