// Attention as a grid (SVG): target words are rows, source words columns, bars below are coverage.

import { download, drawing, element } from "./dom.js";
import { level } from "./words.js";

const FONT = 12;
const PAD = 6;
const STRIP = 40;
const FAINT = 0.01;
const LONGEST = 18;
// Chinese and Japanese: kana, characters, and their punctuation.
const UPRIGHT = /[\u3000-\u30ff\u3400-\u9fff\uff00-\uff60]/;
const ZOOMS = [0.5, 0.75, 1, 1.5, 2, 3];
// Colours are written into the drawing, so that an exported file looks the same anywhere.
const INK = {
  light: { paper: "#ffffff", empty: "#f1f3f6", text: "#1b1f24", cell: "#1f5fa8", line: "#c23b00" },
  dark: { paper: "#15181d", empty: "#20252d", text: "#e6e9ee", cell: "#6db3ff", line: "#ffb454" },
};
const DARK = matchMedia("(prefers-color-scheme: dark)");
const BARS = { little: "#d9480f", enough: "#2b8a3e", much: "#9c36b5" };

DARK.addEventListener("change", () =>
  document.querySelectorAll(".heat").forEach((map) => map.dispatchEvent(new Event("scheme"))));

export class HeatMap {
  constructor(sentence, name, onLight) {
    this.sentence = sentence;
    this.name = name;
    this.onLight = onLight;
    this.zoom = 2;
    this.box = element("div", { class: "heat-box", tabindex: "0", role: "group",
      "aria-label": "Attention heat map; scrolls" });
    this.readout = element("p", { class: "readout" }, " ");
    this.node = element("details", { class: "heat", open: true },
      element("summary", {}, "Heat map"), this.tools(), this.readout, this.box);
    // told through the page, so that nothing holds on to a map that is no longer there
    this.node.addEventListener("scheme", () => this.draw());
    this.draw();
  }

  tools() {
    const button = (label, title, action) =>
      element("button", { type: "button", title, "aria-label": title, onclick: action }, label);
    return element("div", { class: "row tools" },
      button("−", "Zoom out", () => this.zoomBy(-1)),
      button("+", "Zoom in", () => this.zoomBy(1)),
      button("SVG", "Export as SVG", () => this.exportSvg()),
      button("PNG", "Export as PNG", () => this.exportPng()));
  }

  zoomBy(step) {
    this.zoom = Math.min(Math.max(this.zoom + step, 0), ZOOMS.length - 1);
    this.size();
  }

  size() {
    const scale = ZOOMS[this.zoom];
    this.svg.setAttribute("width", Math.round(this.width * scale));
    this.svg.setAttribute("height", Math.round(this.height * scale));
  }

  draw() {
    const { source_tokens: source, tokens: target } = this.sentence;
    const ink = INK[DARK.matches ? "dark" : "light"];
    // at 80 words a line of text still fits into a cell
    this.cell = Math.max(source.length, target.length) <= 25 ? 22 : 13;
    this.left = widest([...target, "coverage"]) + 2 * PAD;
    this.top = widest(source) + 2 * PAD;
    const bottom = this.top + target.length * this.cell;
    this.width = Math.max(this.left + source.length * this.cell + PAD, 120);
    this.height = bottom + STRIP + 3 * PAD;
    this.svg = drawing("svg", { xmlns: "http://www.w3.org/2000/svg", role: "img",
      viewBox: `0 0 ${this.width} ${this.height}`, "font-family": "system-ui, sans-serif",
      "font-size": FONT, onmousemove: (event) => this.point(event),
      onmouseleave: () => this.onLight(null, 0) },
      drawing("title", {}, `Attention of ${this.name}: ${source.length} source words, ` +
        `${target.length} target words`),
      drawing("rect", { width: this.width, height: this.height, fill: ink.paper }),
      drawing("rect", { x: this.left, y: this.top, width: source.length * this.cell,
        height: target.length * this.cell, fill: ink.empty }),
      ...this.cells(ink),
      ...target.map((word, i) => this.label(word, this.left - PAD,
        this.top + (i + 0.5) * this.cell, ink,
        { lang: this.sentence.languages.target, "text-anchor": "end" })),
      ...source.map((word, j) => this.above(word, this.left + (j + 0.5) * this.cell, ink)),
      ...this.bars(bottom + PAD, ink));
    this.column = this.frame(ink, this.cell, target.length * this.cell);
    this.row = this.frame(ink, source.length * this.cell, this.cell);
    this.svg.append(this.column, this.row);
    this.size();
    this.box.replaceChildren(this.svg);
  }

  cells(ink) {
    return this.sentence.alignment.flatMap((row, i) => row.flatMap((weight, j) =>
      weight < FAINT ? [] : [drawing("rect", { x: this.left + j * this.cell,
        y: this.top + i * this.cell, width: this.cell, height: this.cell, fill: ink.cell,
        "fill-opacity": Math.min(weight, 1).toFixed(3) })]));
  }

  label(word, x, y, ink, attributes) {
    const text = drawing("text", { x, y, fill: ink.text, "dominant-baseline": "central",
      ...attributes }, shortened(word));
    if (shortened(word) !== word) text.append(drawing("title", {}, word));
    return text;
  }

  /** A label over a column: turned, or from top to bottom in scripts that are written so. */
  above(word, x, ink) {
    const y = this.top - PAD;
    const way = UPRIGHT.test(word)
      ? { "text-anchor": "end", "writing-mode": "vertical-rl" }
      : { "text-anchor": "start", transform: `rotate(-90 ${x} ${y})` };
    return this.label(word, x, y, ink, { lang: this.sentence.languages.source, ...way });
  }

  bars(y, ink) {
    const one = drawing("line", { x1: this.left, x2: this.width - PAD, y1: y + STRIP / 2,
      y2: y + STRIP / 2, stroke: ink.text, "stroke-opacity": 0.35, "stroke-dasharray": "2 3" });
    const label = drawing("text", { x: this.left - PAD, y: y + STRIP / 2, fill: ink.text,
      "text-anchor": "end", "dominant-baseline": "central", "fill-opacity": 0.75 },
      drawing("title", {}, "the dotted line is 1"), "coverage");
    const bars = this.sentence.coverage.map((value, j) => {
      const height = Math.max(Math.min(value / 2, 1) * STRIP, 1);
      return drawing("rect", { x: this.left + j * this.cell + 2, y: y + STRIP - height,
        width: this.cell - 4, height, fill: BARS[level(value, this.sentence.fertility?.[j])] });
    });
    return [...bars, one, label];
  }

  frame(ink, width, height) {
    return drawing("rect", { width, height, fill: "none", stroke: ink.line, "stroke-width": 2,
      visibility: "hidden", class: "frame", "pointer-events": "none" });
  }

  point(event) {
    const place = this.svg.getBoundingClientRect();
    const scale = this.width / place.width;
    const j = Math.floor(((event.clientX - place.left) * scale - this.left) / this.cell);
    const i = Math.floor(((event.clientY - place.top) * scale - this.top) / this.cell);
    const weight = this.sentence.alignment[i]?.[j];
    if (weight === undefined) return this.onLight(null, 0);
    this.onLight("target", i);
    this.light("target", i, j);
    const [word, origin] = [this.sentence.tokens[i], this.sentence.source_tokens[j]];
    this.readout.replaceChildren(element("bdi", {}, word), " ← ", element("bdi", {}, origin),
      `: ${weight.toFixed(3)}`);
  }

  light(side, position, column = null) {
    show(this.row, side === "target", this.left, this.top + position * this.cell);
    const j = side === "source" ? position : column;
    show(this.column, j !== null, this.left + (j ?? 0) * this.cell, this.top);
    if (side === null) this.readout.textContent = " ";
  }

  markup() {
    const copy = this.svg.cloneNode(true);
    copy.querySelectorAll(".frame").forEach((frame) => frame.remove());
    copy.setAttribute("width", this.width);
    copy.setAttribute("height", this.height);
    return new XMLSerializer().serializeToString(copy);
  }

  exportSvg() {
    download(`${this.name}.svg`, new Blob([this.markup()], { type: "image/svg+xml" }));
  }

  async exportPng() {
    const url = URL.createObjectURL(new Blob([this.markup()], { type: "image/svg+xml" }));
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = element("canvas", { width: 2 * this.width, height: 2 * this.height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(url);
    canvas.toBlob((blob) => download(`${this.name}.png`, blob), "image/png");
  }
}

function show(frame, visible, x, y) {
  frame.setAttribute("visibility", visible ? "visible" : "hidden");
  frame.setAttribute("x", x);
  frame.setAttribute("y", y);
}

function shortened(word) {
  const letters = [...word];  // an emoji is two units of a string
  return letters.length <= LONGEST ? word : `${letters.slice(0, LONGEST - 1).join("")}…`;
}

let pen;

function widest(words) {
  pen ??= element("canvas").getContext("2d");
  pen.font = `${FONT}px system-ui, sans-serif`;
  const widths = words.map((word) => pen.measureText(shortened(word)).width);
  return Math.ceil(Math.max(0, ...widths) * 1.05);
}
