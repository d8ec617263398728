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

/** Offer content as a file. */
export function download(name, blob) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
