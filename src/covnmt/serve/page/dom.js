// Create elements from data. Text is always inserted as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

const RIGHT_TO_LEFT = new Set(["ar", "ckb", "dv", "fa", "he", "ps", "sd", "ug", "ur", "yi"]);

/** `lang` and `dir` of text in a language. Only where that is unknown does the first word decide. */
export function languageAttributes(lang) {
  return { lang, dir: RIGHT_TO_LEFT.has(lang) ? "rtl" : "auto" };
}

/** Create an HTML element; children are elements or strings. */
export function element(tag, attributes = {}, ...children) {
  return initialize(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function svgElement(tag, attributes = {}, ...children) {
  return initialize(document.createElementNS(SVG, tag), attributes, children);
}

function initialize(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** A box that is closed; what it holds is built when it is first opened. */
export function lazyDetails(attributes, summary, build) {
  const node = element("details", attributes, element("summary", {}, summary));
  node.addEventListener("toggle", () => node.append(...build()), { once: true });
  return node;
}

/** "1 place", "2 places". */
export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** Let the browser draw and react before the next line runs. */
export function nextTask() {
  // a timer would wait for seconds in a tab that is not looked at
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = resolve;
    port2.postMessage(null);
  });
}

/** Copy text; false if the browser does not allow it. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // without https browsers have only the older way
    const box = element("textarea", { class: "offscreen", readonly: true });
    const focused = document.activeElement;
    box.value = text;
    document.body.append(box);
    box.select();
    const copied = document.execCommand("copy");
    box.remove();
    focused?.focus();
    return copied;
  }
}

/** Offer content as a file. */
export function download(name, blob) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
