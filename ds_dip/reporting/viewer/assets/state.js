// What the page shows, in one place; everything that changes it asks for a new drawing by `redraw`.

const state = {
  number: report.opened, // which view
  show: "both", // "planned", "measured" or "both"
  colour: "module", // or "microbatch", "difference"
  transfers: false, memory: true, path: true,
  begin: 0, end: 1, // the visible times
  selected: -1, hovered: null, // a stage; what is under the pointer
  pointer: null, // {x, y} in the canvas
  matches: null, found: [], // of the search: a flag a stage, and the stages in time order
  dark: false,
  frames: 0, drawing: 0, // drawings so far, and milliseconds of the last one
};
let view = viewOf(state.number);
let awaited = false;

function redraw() {
  if (awaited) return;
  awaited = true;
  requestAnimationFrame(() => {
    awaited = false;
    draw();
  });
}

// The tracks that are shown, from top to bottom.
function shownTracks() {
  return state.show === "both" ? view.tracks : view.tracks.filter((track) => track.name === state.show);
}

// What times are read from where one is needed: what was measured, if that is shown.
function mainTrack() {
  const tracks = shownTracks();
  return tracks[tracks.length - 1];
}

function setWindow(begin, end) {
  const whole = view.end - view.begin;
  const margin = 0.02 * whole;
  const length = Math.min(Math.max(end - begin, whole * 1e-7), whole + 2 * margin);
  const middle = (begin + end) / 2;
  begin = Math.min(Math.max(middle - length / 2, view.begin - margin), view.end + margin - length);
  state.begin = begin;
  state.end = begin + length;
  redraw();
}

function fit() {
  setWindow(2 * view.begin - view.end, 2 * view.end - view.begin);
}

// Zooms by a factor (below 1: in) so that `time` stays where it is.
function zoom(factor, time = (state.begin + state.end) / 2) {
  const length = (state.end - state.begin) * factor;
  const share = (time - state.begin) / (state.end - state.begin);
  setWindow(time - share * length, time + (1 - share) * length);
}

function pan(share) {
  const shift = share * (state.end - state.begin);
  setWindow(state.begin + shift, state.end + shift);
}

// Brings a stage into the middle, zoomed in where it would be too small to see.
function centre(stage) {
  const track = mainTrack();
  const start = track.start[stage];
  if (Number.isNaN(start)) return;
  const length = track.end[stage] - start;
  let window = state.end - state.begin;
  if (length > 0 && (length / window) * plotWidth() < 24) window = (length * plotWidth()) / 60;
  if (length > window * 0.8) window = length / 0.8;
  const middle = start + length / 2;
  setWindow(middle - window / 2, middle + window / 2);
  reveal(view.rank[stage]);
}

function select(stage, announce = true) {
  state.selected = stage;
  if (announce) document.getElementById("live").textContent = stage < 0 ? "Nothing selected." : sentenceOf(stage);
  redraw();
  showCard();
}
