// Attention as a grid (SVG): target words are rows, source words columns; bars show coverage.

import { download, svgElement, element } from "./dom.js";
import { coverageLevel, weight } from "./sentence.js";

const FONT = 12;
const PAD = 6;
const BAR_AREA = 40;
const MIN_WEIGHT = 0.01;
const MAX_LABEL = 18;
// Chinese and Japanese are written from top to bottom: kana, characters and punctuation.
const UPRIGHT = /[\u3000-\u30ff\u3400-\u9fff\uff00-\uff60]/;
const ZOOMS = [0.5, 0.75, 1, 1.5, 2, 3];
const MIN_FIT = 0.75;  // a map that is too wide for its box is drawn smaller, but not too small to read
// Colors are part of the drawing, so that an exported file looks the same anywhere.
const COLORS = {
  light: { paper: "#ffffff", empty: "#f1f3f6", text: "#1b1f24", cell: "#1f5fa8", line: "#c23b00" },
  dark: { paper: "#15181d", empty: "#20252d", text: "#e6e9ee", cell: "#6db3ff", line: "#ffb454" },
};
const DARK = matchMedia("(prefers-color-scheme: dark)");
const BARS = { little: "#d9480f", enough: "#2b8a3e", much: "#9c36b5" };

DARK.addEventListener("change", () =>
  document.querySelectorAll(".heat-box").forEach((map) => map.dispatchEvent(new Event("scheme"))));

export class HeatMap {
  constructor(sentence, name, highlighter) {
    const { source, target } = sentence;
    this.sentence = sentence;
    this.name = name;
    this.rows = target.words.map((word) => word.text);
    this.columns = source.words.map((word) => word.text);
    this.onHighlight = (side, k) => highlighter.show(side, k);
    highlighter.listeners.push((side, k) => this.highlight(side, k));
    this.zoom = 2;
    this.fit = 1;
    this.box = element("div", { class: "heat-box", tabindex: "0", role: "group",
      "aria-label": "Attention heat map; scrolls" });
    this.readout = element("p", { class: "readout" }, " ");
    // the event comes through the page, so that nothing keeps a map alive that was removed
    this.box.addEventListener("scheme", () => this.draw());
    this.parts = [this.tools(), this.readout, this.box];
    this.draw();
    // the box has a width when it is in the page
    queueMicrotask(() => {
      this.fit = Math.max(Math.min(this.box.clientWidth / this.width, 1), MIN_FIT);
      this.size();
    });
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
    const scale = ZOOMS[this.zoom] * this.fit;
    this.svg.setAttribute("width", Math.round(this.width * scale));
    this.svg.setAttribute("height", Math.round(this.height * scale));
  }

  draw() {
    const { columns: source, rows: target } = this;
    const { source: { lang: sourceLang }, target: { lang: targetLang } } = this.sentence;
    const colors = COLORS[DARK.matches ? "dark" : "light"];
    // a line of text fits into a cell, with some space
    this.cell = Math.max(source.length, target.length) <= 25 ? 22 : 16;
    this.left = maxLabelWidth([...target, "coverage"]) + 2 * PAD;
    this.top = maxLabelWidth(source) + 2 * PAD;
    const bottom = this.top + target.length * this.cell;
    this.width = Math.max(this.left + source.length * this.cell + PAD, 120);
    this.height = bottom + BAR_AREA + 3 * PAD;
    this.svg = svgElement("svg", { xmlns: "http://www.w3.org/2000/svg", role: "img",
      viewBox: `0 0 ${this.width} ${this.height}`, "font-family": "system-ui, sans-serif",
      "font-size": FONT, onmousemove: (event) => this.showCell(event),
      onmouseleave: () => this.onHighlight(null, 0) },
      svgElement("title", {}, `Attention of ${this.name}: ${source.length} source words, ` +
        `${target.length} target words`),
      svgElement("rect", { width: this.width, height: this.height, fill: colors.paper }),
      svgElement("rect", { x: this.left, y: this.top, width: source.length * this.cell,
        height: target.length * this.cell, fill: colors.empty }),
      ...this.cells(colors),
      ...target.map((word, i) => this.label(word, this.left - PAD,
        this.top + (i + 0.5) * this.cell, colors,
        { lang: targetLang, "text-anchor": "end" })),
      ...source.map((word, j) =>
        this.columnLabel(word, this.left + (j + 0.5) * this.cell, colors, sourceLang)),
      ...this.bars(bottom + PAD, colors));
    this.column = this.frame(colors, this.cell, target.length * this.cell);
    this.row = this.frame(colors, source.length * this.cell, this.cell);
    this.svg.append(this.column, this.row);
    this.size();
    this.box.replaceChildren(this.svg);
  }

  cells(colors) {
    return this.rows.flatMap((_, i) => this.columns.flatMap((_, j) => {
      const share = weight(this.sentence, i, j);
      return share < MIN_WEIGHT ? [] : [svgElement("rect", { x: this.left + j * this.cell,
        y: this.top + i * this.cell, width: this.cell, height: this.cell, fill: colors.cell,
        "fill-opacity": Math.min(share, 1).toFixed(3) })];
    }));
  }

  label(word, x, y, colors, attributes) {
    const text = svgElement("text", { x, y, fill: colors.text, "dominant-baseline": "central",
      ...attributes }, shorten(word));
    if (shorten(word) !== word) text.append(svgElement("title", {}, word));
    return text;
  }

  /** A label over a column: rotated, or from top to bottom in scripts that are written so. */
  columnLabel(word, x, colors, lang) {
    const y = this.top - PAD;
    const orientation = UPRIGHT.test(word)
      ? { "text-anchor": "end", "writing-mode": "vertical-rl" }
      : { "text-anchor": "start", transform: `rotate(-90 ${x} ${y})` };
    return this.label(word, x, y, colors, { lang, ...orientation });
  }

  bars(y, colors) {
    const one = svgElement("line", { x1: this.left, x2: this.width - PAD, y1: y + BAR_AREA / 2,
      y2: y + BAR_AREA / 2, stroke: colors.text, "stroke-opacity": 0.35, "stroke-dasharray": "2 3" });
    const label = svgElement("text", { x: this.left - PAD, y: y + BAR_AREA / 2, fill: colors.text,
      "text-anchor": "end", "dominant-baseline": "central", "fill-opacity": 0.75 },
      svgElement("title", {}, "the dotted line is 1"), "coverage");
    const bars = this.sentence.coverage.map((value, j) => {
      const height = Math.max(Math.min(value / 2, 1) * BAR_AREA, 1);
      return svgElement("rect", { x: this.left + j * this.cell + 2, y: y + BAR_AREA - height,
        width: this.cell - 4, height,
        fill: BARS[coverageLevel(this.sentence, j, value)] });
    });
    return [...bars, one, label];
  }

  frame(colors, width, height) {
    return svgElement("rect", { width, height, fill: "none", stroke: colors.line, "stroke-width": 2,
      visibility: "hidden", class: "frame", "pointer-events": "none" });
  }

  showCell(event) {
    const bounds = this.svg.getBoundingClientRect();
    const scale = this.width / bounds.width;
    const j = Math.floor(((event.clientX - bounds.left) * scale - this.left) / this.cell);
    const i = Math.floor(((event.clientY - bounds.top) * scale - this.top) / this.cell);
    if (!this.rows[i] || !this.columns[j]) return this.onHighlight(null, 0);
    this.onHighlight("target", i);
    this.highlight("target", i, j);
    this.readout.replaceChildren(element("bdi", {}, this.rows[i]), " ← ",
      element("bdi", {}, this.columns[j]), `: ${weight(this.sentence, i, j).toFixed(3)}`);
  }

  highlight(side, position, column = null) {
    moveFrame(this.row, side === "target", this.left, this.top + position * this.cell);
    const j = side === "source" ? position : column;
    moveFrame(this.column, j !== null, this.left + (j ?? 0) * this.cell, this.top);
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

function moveFrame(frame, visible, x, y) {
  frame.setAttribute("visibility", visible ? "visible" : "hidden");
  frame.setAttribute("x", x);
  frame.setAttribute("y", y);
}

function shorten(word) {
  const letters = [...word];  // an emoji is two units of a string
  return letters.length <= MAX_LABEL ? word : `${letters.slice(0, MAX_LABEL - 1).join("")}…`;
}

let canvasContext;

function maxLabelWidth(words) {
  canvasContext ??= element("canvas").getContext("2d");
  canvasContext.font = `${FONT}px system-ui, sans-serif`;
  const widths = words.map((word) => canvasContext.measureText(shorten(word)).width);
  return Math.ceil(Math.max(0, ...widths) * 1.05);
}
