// What the page asks of the server.

/** A request that failed, with a message for the reader. */
export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const GONE = "The server does not answer. Is it still running?";
const PARTS = ["tokens", "alignment", "coverage", "fertility", "remarks"];
const SPACE = "▁"; // what stands for a space in subwords
// a character that subwords spell in bytes, which are tokens of their own
const INNER = "\n<0x[89AB][0-9A-F]>";
const IN_BYTES = new RegExp(
  "<0x(?:2[1-9A-F]|[3-6][0-9A-F]|7[0-9A-E])>" +
    `|<0x[CD][0-9A-F]>${INNER}|<0xE[0-9A-F]>(?:${INNER}){2}|<0xF[0-7]>(?:${INNER}){3}`, "g");

export function models(key) {
  return ask("v1/models", { headers: headers(key) });
}

/** Translate, and tell `onWords(sentence number, text)` of what comes meanwhile. */
export async function translate(query, key, signal, onWords) {
  const body = { text: query.text, model: query.model, return: PARTS };
  if (query.beam) body.beam = query.beam;
  const answer = await send("v1/translate/stream", posted(body, key, signal));
  const sentences = [];
  for await (const { name, content } of events(answer)) {
    if (name === "error") throw new Failure(answer.status, content.error);
    if (name === "done") return { model: content.model, text: content.texts[0], sentences };
    if (name === "sentence") sentences.push(readable(content));
    onWords(content.sentence_number, content.text);
  }
  throw new Failure(0, GONE);
}

/** What does this translation of a sentence leave out? */
export async function check(model, source, target, key, signal) {
  const body = { model, pairs: [{ source, target }] };
  return (await ask("v1/check", posted(body, key, signal))).checks[0];
}

/** A sentence whose subwords read like words; a space alone is shown as one. */
function readable(sentence) {
  const plain = (token) => token.replaceAll(SPACE, " ").trim() || "␣";
  const shown = (tokens) => (tokens.length ? spelt(tokens).map(plain) : []);
  return { ...sentence, source_tokens: shown(sentence.source_tokens), tokens: shown(sentence.tokens) };
}

/** Bytes as the character that they spell, numbered where there are several: 驫₁ 驫₂ 驫₃. */
function spelt(tokens) {
  return tokens.join("\n").replace(IN_BYTES, (found) => {
    const bytes = found.match(/[0-9A-F]{2}/g).map((byte) => parseInt(byte, 16));
    const character = new TextDecoder().decode(new Uint8Array(bytes));
    return bytes.map((_, k) => character + (bytes.length > 1 ? "₁₂₃₄"[k] : "")).join("\n");
  }).split("\n");
}

function headers(key) {
  return key ? { "x-api-key": key } : {};
}

function posted(body, key, signal) {
  const sent = { ...headers(key), "content-type": "application/json" };
  return { method: "POST", headers: sent, body: JSON.stringify(body), signal };
}

async function ask(path, options) {
  return (await send(path, options)).json();
}

async function send(path, options) {
  const answer = await fetch(path, options).catch(gone);
  if (answer.ok) return answer;
  const content = await answer.json().catch(() => ({}));
  throw new Failure(answer.status, content.error ?? `error ${answer.status}`);
}

function gone(error) {
  throw error.name === "AbortError" ? error : new Failure(0, GONE);
}

/** Server-sent events of an answer, as they come. */
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read().catch(gone);
    if (done) return;
    const blocks = (text + value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const [name, data] = block.split("\n");
      yield { name: name.slice("event: ".length), content: JSON.parse(data.slice("data: ".length)) };
    }
  }
}
