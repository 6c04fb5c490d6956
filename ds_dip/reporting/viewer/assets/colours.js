// Colours that colour-blind people tell apart (Okabe and Ito), a pattern a direction, and the themes' greys.

const OKABE_ITO = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
// From twice as fast to twice as slow.
const SLOWER = ["#08519c", "#3b7fbf", "#77aad6", "#b5cfe6", "#c9c9c9", "#f6cf9f", "#f2a154", "#dd7017", "#a34700"];
// Of causes of bubbles, in the order in which the document has them: a colour, and stripes (1) or dots (2).
const CAUSES = [
  ["#8a949d", 1], ["#d55e00", 1], ["#56b4e9", 1], ["#cc79a7", 1], ["#b8a800", 1], ["#0072b2", 1],
  ["#e69f00", 1], ["#8a949d", 2], ["#009e73", 2], ["#d55e00", 2], ["#0072b2", 2], ["#009e73", 1],
];
const THEMES = {
  light: { back: "#ffffff", ink: "#1d2329", soft: "#56616c", line: "#d5dbe1", faint: "#eef1f4", gap: "#b9c2ca", path: "#000000", memory: "#5d7fa3", over: "#d55e00" },
  dark: { back: "#14181c", ink: "#e6eaee", soft: "#9ba7b2", line: "#343d45", faint: "#1d2328", gap: "#4d5963", path: "#ffffff", memory: "#7397bd", over: "#ff8a3d" },
};
const DIM = 0.16;

function theme() {
  return THEMES[state.dark ? "dark" : "light"];
}

function mixed(colour, other, share) {
  const parts = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const [a, b] = [parts(colour), parts(other)];
  return `#${a.map((value, at) => Math.round(value * (1 - share) + b[at] * share).toString(16).padStart(2, "0")).join("")}`;
}

function luminance(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

// Forward plain, backward darker with stripes, weight gradient lighter with dots; where the brightness itself says
// something, patterns alone.
function shaded(colour, kind) {
  if (state.colour === "difference") return colour;
  return kind === 0 ? colour : kind === 1 ? mixed(colour, "#000000", 0.28) : mixed(colour, "#ffffff", 0.5);
}

const patterns = new Map();

function patternOf(kind, ink) {
  const key = `${kind}${ink}`;
  if (!patterns.has(key)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.strokeStyle = pen.fillStyle = ink;
    if (kind === 1) {
      pen.lineWidth = 1.2;
      pen.beginPath();
      for (const shift of [-6, 0, 6]) {
        pen.moveTo(shift, 6);
        pen.lineTo(shift + 6, 0);
      }
      pen.stroke();
    } else {
      pen.fillRect(1, 1, 1.5, 1.5);
      pen.fillRect(4, 4, 1.5, 1.5);
    }
    patterns.set(key, pen.createPattern(tile, "repeat"));
  }
  return patterns.get(key);
}

// The styles of the present colouring: `of` gives each stage one of `list`.
let styles = { list: [], of: new Uint16Array(0) };

function restyle() {
  const list = [];
  const known = new Map();
  const of = new Uint16Array(view.count);
  for (let stage = 0; stage < view.count; stage++) {
    const colour = colourOf(stage);
    const key = `${colour}${view.kind[stage]}`;
    if (!known.has(key)) {
      known.set(key, list.length);
      list.push(styleOf(colour, view.kind[stage]));
    }
    of[stage] = known.get(key);
  }
  styles = { list, of };
}

function styleOf(colour, kind) {
  const fill = shaded(colour, kind);
  const light = luminance(fill) > 0.22;
  const veil = light ? "rgba(0,0,0,.28)" : "rgba(255,255,255,.3)";
  return { fill, ink: light ? "#000000" : "#ffffff", pattern: kind === 0 ? null : patternOf(kind, veil) };
}

function moduleColour(module) {
  return OKABE_ITO[module % OKABE_ITO.length];
}

function colourOf(stage) {
  if (state.colour === "microbatch") return OKABE_ITO[view.microbatch[stage] % OKABE_ITO.length];
  if (state.colour === "difference" && view.tracks.length === 2) return SLOWER[levelOf(stage)];
  return moduleColour(view.module[stage]);
}

// How much longer than planned a stage took: 0 half as long or less, 4 as planned, 8 twice as long or more.
function levelOf(stage) {
  const [planned, measured] = view.tracks.map((track) => track.end[stage] - track.start[stage]);
  if (!(planned > 0) || !(measured > 0)) return 4;
  return Math.round(4 + 4 * Math.min(1, Math.max(-1, Math.log2(measured / planned))));
}

// The colour of a bubble and its pattern.
function causeStyle(cause) {
  const place = Object.keys(report.causes).indexOf(cause);
  const [colour, kind] = cause === null ? [theme().gap, 1] : CAUSES[Math.max(0, place) % CAUSES.length];
  return { colour, pattern: patternOf(kind, colour) };
}
