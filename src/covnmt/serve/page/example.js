// The worked example that the page opens with: a translation that leaves something out, and what is found.
// example.json holds what the bundled model really answered (scripts/update-docs writes it).

import { missingWords, reason } from "./check.js";
import { element } from "./dom.js";
import { languageName } from "./languages.js";
import { phrase, readSentence, readSide, weight, wordsAt } from "./sentence.js";
import { textLine } from "./words.js";

/**
 * Fetch and draw the example. If one of the models has its languages, a button calls
 * `tryIt(source, target, model)`.
 */
export async function workedExample(models, tryIt) {
  const response = await fetch("example.json");
  const { languages, bounds, gloss, translation, sentence: content, check } = await response.json();
  const model = models.find(({ source, target }) =>
    source === languages.source && target === languages.target);
  const sentence = readSentence(content, languages, bounds);
  const [omission] = check.left_out;
  const source = readSide(content.source, check.source_tokens, languages.source);
  const missing = wordsAt(source, omission.start, omission.end);
  // the words of the model's own translation that come from the missing ones
  const said = sentence.target.words.flatMap((_, i) =>
    missing.reduce((sum, j) => sum + weight(sentence, i, j), 0) >= 0.5 ? [i] : []);
  const word = phrase(source, missing);
  const [start, end] = [source.words[missing[0]].from, source.words[missing.at(-1)].to];
  let at = 0;  // where a piece of the gloss begins
  const isMissing = (text) => {
    at += text.length;
    return at > start && at - text.length < end;
  };
  const target = { lang: languages.target };
  const [from, to] = [languages.source, languages.target].map(languageName);
  return element("section", { class: "example", "aria-labelledby": "example-title" },
    element("h2", { id: "example-title" }, "What does this translation leave out?"),
    element("h3", {}, `For example, a sentence in ${from}, word by word`),
    element("p", { class: "gloss", lang: languages.source }, ...gloss.map(([text, meaning]) => {
      const ruby = element("ruby", {}, text, element("rt", target, meaning));
      return isMissing(text) ? element("mark", { class: "left-out" }, ruby) : ruby;
    })),
    element("h3", {}, `Somebody's translation into ${to}`),
    element("p", { class: "given", ...target }, translation),
    element("h3", {}, "What covnmt says"),
    element("p", {}, element("b", {}, "1 place to look at."), " Probably left out: ",
      ...missingWords({ ...omission, text: word }, languages.source), ". ",
      element("span", { class: "soft" }, reason([omission]))),
    element("p", { class: "soft" }, `The model's own translation has it:`),
    textLine(sentence.target, { class: "own" }, [[said, "said", null]]),
    ...model ? [element("button",
      { type: "button", onclick: () => tryIt(content.source, translation, model) },
      "Try it: change this translation")] : []);
}
