// Requests to the server.

/** A failed request, with a message to show. */
export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const NO_ANSWER = "The server does not answer. Is it still running?";
const PARTS = ["tokens", "alignment", "coverage", "fertility", "remarks"];
const SPACE_SYMBOL = "▁"; // begins a subword that follows a space
// Characters that are not in the vocabulary: every byte of UTF-8 is a token.
const NEXT = "\n<0x[89AB][0-9A-F]>"; // a byte after the first
const BYTE_TOKENS = new RegExp(
  "<0x(?:2[1-9A-F]|[3-6][0-9A-F]|7[0-9A-E])>" +
    `|<0x[CD][0-9A-F]>${NEXT}|<0xE[0-9A-F]>(?:${NEXT}){2}|<0xF[0-7]>(?:${NEXT}){3}`, "g");

/** The models of the server, the default first. */
export function fetchModels(key) {
  return fetchJson("v1/models", { headers: headers(key) });
}

/** Translate; `onPartial(sentence number, text)` is called with partial translations meanwhile. */
export async function translate(query, key, signal, onPartial) {
  const body = { text: query.text, model: query.model, return: PARTS };
  if (query.beam) body.beam = query.beam;
  const response = await sendRequest("v1/translate/stream", postOptions(body, key, signal));
  const sentences = [];
  for await (const { name, content } of readEvents(response)) {
    if (name === "error") throw new RequestError(response.status, content.error);
    if (name === "done") return { model: content.model, text: content.texts[0], sentences };
    if (name === "sentence") sentences.push(withReadableTokens(content));
    onPartial(content.sentence_number, content.text);
  }
  throw new RequestError(0, NO_ANSWER);
}

/** Ask what this translation of a sentence leaves out. */
export async function fetchCheck(model, source, target, key, signal) {
  const body = { model, pairs: [{ source, target }] };
  return (await fetchJson("v1/check", postOptions(body, key, signal))).checks[0];
}

/** Replace subwords by what a reader sees as words; a token that is only a space becomes ␣. */
function withReadableTokens(sentence) {
  const toWord = (token) => token.replaceAll(SPACE_SYMBOL, " ").trim() || "␣";
  const convert = (tokens) => (tokens.length ? decodeByteTokens(tokens).map(toWord) : []);
  const { source_tokens, tokens } = sentence;
  return { ...sentence, source_tokens: convert(source_tokens), tokens: convert(tokens) };
}

/** Replace byte tokens by their character, numbered if it has several bytes: 驫₁ 驫₂ 驫₃. */
function decodeByteTokens(tokens) {
  return tokens.join("\n").replace(BYTE_TOKENS, (run) => {
    const bytes = run.match(/[0-9A-F]{2}/g).map((byte) => parseInt(byte, 16));
    const character = new TextDecoder().decode(new Uint8Array(bytes));
    return bytes.map((_, k) => character + (bytes.length > 1 ? "₁₂₃₄"[k] : "")).join("\n");
  }).split("\n");
}

function headers(key) {
  return key ? { "x-api-key": key } : {};
}

function postOptions(body, key, signal) {
  return {
    method: "POST",
    headers: { ...headers(key), "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  };
}

async function fetchJson(path, options) {
  return (await sendRequest(path, options)).json();
}

async function sendRequest(path, options) {
  const response = await fetch(path, options).catch(throwNoAnswer);
  if (response.ok) return response;
  const content = await response.json().catch(() => ({}));
  throw new RequestError(response.status, content.error ?? `error ${response.status}`);
}

/** A cancelled request stays one; any other network error means that there is no server. */
function throwNoAnswer(error) {
  throw error.name === "AbortError" ? error : new RequestError(0, NO_ANSWER);
}

/** Yield the server-sent events of a response as they come. */
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read().catch(throwNoAnswer);
    if (done) return;
    const blocks = (text + value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const [name, data] = block.split("\n");
      yield { name: name.slice("event: ".length), content: JSON.parse(data.slice("data: ".length)) };
    }
  }
}
