// The page: translates what is typed, and shows the results.

import { fetchCheck, RequestError, fetchModels, translate } from "./api.js";
import { element, languageAttributes } from "./dom.js";
import { examplesFor } from "./examples.js";
import { draftPanel, resultPanel } from "./result.js";
import { readState, writeState } from "./state.js";

const TYPING_PAUSE_MS = 400;
// A translation that is done sooner is shown without partial ones before it.
const DRAFT_DELAY_MS = 150;
const field = Object.fromEntries(
  ["form", "text", "model", "compare", "beam", "examples", "key", "key-row", "link", "status",
    "error", "results"].map((id) => [id, document.getElementById(id)]));

let models = [];
let pending = null;
let timer = null;

async function start() {
  restoreText();
  field.key.value = sessionStorage.getItem("key") ?? "";
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  for (const name of ["text", "beam"]) field[name].addEventListener("input", scheduleRun);
  for (const name of ["model", "compare"]) field[name].addEventListener("change", run);
  field.model.addEventListener("change", adaptToModel);
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
    models = (await fetchModels(field.key.value)).models;
    const options = () => models.map((model) =>
      element("option", { value: model.name, title: `coverage: ${model.coverage}` }, model.name));
    field.model.replaceChildren(...options());
    field.compare.replaceChildren(element("option", { value: "" }, "nothing"), ...options());
    field.compare.disabled = models.length < 2;
    restoreModels();
    await run();
  } catch (error) {
    showError(error);
  }
}

// Show the default beam of the chosen model, and examples in its language.
function adaptToModel() {
  const model = findModel(field.model.value);
  field.beam.placeholder = model?.beam ?? "";  // empty until the models are loaded
  const { lang = "", dir } = languageAttributes(languagesOf(field.model.value).source);
  Object.assign(field.text, { lang, dir });
  const examples = examplesFor(model);
  field.examples.disabled = !examples.length;
  field.examples.replaceChildren(element("option", { value: "" }, examples.length ? "choose…" : "none"),
    ...examples.map(([name, text]) => element("option", { value: text }, name)));
}

function findModel(name) {
  return models.find((model) => model.name === name);
}

// The languages of a model, for `lang`: Chinese is drawn in other shapes than Japanese. A server
// that does not know them says "source" and "target".
function languagesOf(name) {
  const model = findModel(name);
  return model && model.source !== "source" ? { source: model.source, target: model.target } : {};
}

// Text is restored at once, models when they are loaded: what is typed meanwhile must stay.
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
  adaptToModel();
}

function scheduleRun() {
  clearTimeout(timer);
  timer = setTimeout(run, TYPING_PAUSE_MS);
}

async function run() {
  clearTimeout(timer);
  if (!field.model.length) return;  // loadModels() calls again
  pending?.abort();
  const state = Object.fromEntries(
    ["text", "model", "compare", "beam"].map((name) => [name, field[name].value]));
  writeState(state);
  if (!state.text.trim()) return showResults([], "");
  const request = (pending = new AbortController());
  const names = [...new Set([state.model, state.compare].filter(Boolean))];
  const drafts = names.map((name) => draftPanel(name, languagesOf(name)));
  const drafting = setTimeout(() => showPanels(drafts.map((draft) => draft.node)), DRAFT_DELAY_MS);
  field.status.textContent = "Translating…";
  const started = performance.now();
  try {
    const answers = await Promise.all(names.map((model, n) => translate(
      { ...state, model, beam: Number(state.beam) }, field.key.value, request.signal,
      drafts[n].update)));
    clearTimeout(drafting);
    showResults(answers, `Done in ${Math.round(performance.now() - started)} ms`);
  } catch (error) {
    clearTimeout(drafting);
    if (error.name !== "AbortError") showError(error);
  }
}

function showResults(answers, status) {
  field.error.hidden = true;
  field.status.textContent = status;
  showPanels(answers.map((answer) => resultPanel(
    answer, languagesOf(answer.model), findModel(answer.model),
    (source, target, signal) => fetchCheck(answer.model, source, target, field.key.value, signal))));
}

function showPanels(panels) {
  field.results.classList.toggle("two", panels.length > 1);
  field.results.replaceChildren(...panels);
}

function showError(error) {
  if (!(error instanceof RequestError)) throw error;
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
