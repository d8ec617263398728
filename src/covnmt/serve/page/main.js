// The page: what is typed is translated, and the answer shown.

import { check, Failure, models, translate } from "./api.js";
import { element, written } from "./dom.js";
import { examplesFor } from "./examples.js";
import { draftPanel, resultPanel } from "./result.js";
import { readState, writeState } from "./state.js";

const PAUSE_MS = 400;
// What is done sooner is shown at once, without the words in between.
const DRAFT_MS = 150;
const field = Object.fromEntries(
  ["form", "text", "model", "compare", "beam", "examples", "key", "key-row", "link", "status",
    "error", "results"].map((id) => [id, document.getElementById(id)]));

let known = [];
let pending = null;
let timer = null;

async function start() {
  restoreText();
  field.key.value = sessionStorage.getItem("key") ?? "";
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  for (const name of ["text", "beam"]) field[name].addEventListener("input", later);
  for (const name of ["model", "compare"]) field[name].addEventListener("change", run);
  field.model.addEventListener("change", suitModel);
  field.key.addEventListener("change", () => {
    sessionStorage.setItem("key", field.key.value);
    if (field.model.length) run();
    else loadModels();
  });
  field.examples.addEventListener("change", () => {
    if (field.examples.value) field.text.value = field.examples.value;
    field.examples.value = "";
    run();
  });
  field.link.addEventListener("click", copyLink);
  addEventListener("hashchange", () => {
    restoreText();
    restoreModels();
    run();
  });
  await loadModels();
}

async function loadModels() {
  try {
    known = (await models(field.key.value)).models;
    const options = () => known.map((model) =>
      element("option", { value: model.name, title: `coverage: ${model.coverage}` }, model.name));
    field.model.replaceChildren(...options());
    field.compare.replaceChildren(element("option", { value: "" }, "nothing"), ...options());
    field.compare.disabled = known.length < 2;
    restoreModels();
    await run();
  } catch (error) {
    fail(error);
  }
}

// The beam that it has unless told, and sentences in its language.
function suitModel() {
  const model = known.find((each) => each.name === field.model.value);
  field.beam.placeholder = model?.beam ?? "";  // none before they are known
  const { lang = "", dir } = written(languages(field.model.value).source);
  Object.assign(field.text, { lang, dir });
  const examples = examplesFor(model);
  field.examples.disabled = !examples.length;
  field.examples.replaceChildren(element("option", { value: "" }, examples.length ? "choose…" : "none"),
    ...examples.map(([name, text]) => element("option", { value: text }, name)));
}

// What the `lang` of an element takes: Chinese is drawn in other shapes than Japanese. A server that
// was not told them says "source" and "target".
function languages(name) {
  const model = known.find((each) => each.name === name);
  return model && model.source !== "source" ? { source: model.source, target: model.target } : {};
}

// Text comes back at once, models when they are known: what is typed meanwhile must stay.
function restoreText() {
  const state = readState();
  field.text.value = state.text;
  field.beam.value = state.beam;
}

function restoreModels() {
  const state = readState();
  for (const name of ["model", "compare"]) {
    const offered = [...field[name].options].some((option) => option.value === state[name]);
    if (offered && (state[name] || name === "compare")) field[name].value = state[name];
  }
  suitModel();
}

function later() {
  clearTimeout(timer);
  timer = setTimeout(run, PAUSE_MS);
}

async function run() {
  clearTimeout(timer);
  if (!field.model.length) return;  // loadModels() calls again
  pending?.abort();
  const state = Object.fromEntries(
    ["text", "model", "compare", "beam"].map((name) => [name, field[name].value]));
  writeState(state);
  if (!state.text.trim()) return show([], "");
  const mine = (pending = new AbortController());
  const names = [...new Set([state.model, state.compare].filter(Boolean))];
  const drafts = names.map((name) => draftPanel(name, languages(name)));
  const drafting = setTimeout(() => put(drafts.map((draft) => draft.node)), DRAFT_MS);
  field.status.textContent = "Translating…";
  const began = performance.now();
  try {
    const answers = await Promise.all(names.map((model, n) => translate(
      { ...state, model, beam: Number(state.beam) }, field.key.value, mine.signal,
      drafts[n].words)));
    clearTimeout(drafting);
    show(answers, `Done in ${Math.round(performance.now() - began)} ms`);
  } catch (error) {
    clearTimeout(drafting);
    if (error.name !== "AbortError") fail(error);
  }
}

function show(answers, status) {
  field.error.hidden = true;
  field.status.textContent = status;
  put(answers.map((answer) => resultPanel(answer, languages(answer.model),
    (source, target, signal) => check(answer.model, source, target, field.key.value, signal))));
}

function put(panels) {
  field.results.classList.toggle("two", panels.length > 1);
  field.results.replaceChildren(...panels);
}

function fail(error) {
  if (!(error instanceof Failure)) throw error;
  field.status.textContent = "";
  if (error.status === 401) field["key-row"].hidden = false;
  field.error.hidden = false;
  field.error.textContent = error.message;
  field.results.querySelectorAll(".draft").forEach((draft) => draft.remove());
}

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    field.status.textContent = "Link copied.";
  } catch {
    field.status.textContent = "Copy it from the address bar.";
  }
}

start();
