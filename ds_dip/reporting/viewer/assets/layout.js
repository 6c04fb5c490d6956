// Where things are in the canvas: a gutter of labels, the axis above, then a row a rank with its lanes and its memory.

const AXIS = 26;
const GAP = 10; // between rows
const BETWEEN = 3; // between stages and memory
const SLIP = 11; // between planned and measured, where lines join them
const MEMORY = 34;
const NARROW = 640; // pixels below which labels are short

let width = 800;
let height = 400;
let layout = null;

function gutter() {
  return width < NARROW ? 58 : 148;
}

function plotWidth() {
  return Math.max(10, width - gutter() - 6);
}

function hasMemory() {
  return state.memory && view.memory.length > 0 && view.peak > 0;
}

function relayout() {
  const lanes = shownTracks().length;
  const extra = (hasMemory() ? MEMORY + BETWEEN : 0) + GAP + (lanes - 1) * SLIP;
  const room = (height - AXIS - 4) / view.ranks - extra;
  const lane = Math.max(lanes === 2 ? 13 : 16, Math.min(34, Math.floor(room / lanes)));
  const row = lanes * lane + extra;
  layout = { lanes, lane, row, total: AXIS + row * view.ranks + 4 };
  document.getElementById("spacer").style.height = `${layout.total}px`;
}

function scrollTop() {
  return document.getElementById("scroller").scrollTop;
}

// The top of a rank's row in the canvas.
function rowTop(rank) {
  return AXIS + GAP / 2 + rank * layout.row - scrollTop();
}

function laneTop(rank, number) {
  return rowTop(rank) + number * (layout.lane + SLIP);
}

function memoryTop(rank) {
  return laneTop(rank, layout.lanes - 1) + layout.lane + BETWEEN;
}

function xOf(time) {
  return gutter() + ((time - state.begin) / (state.end - state.begin)) * plotWidth();
}

function timeAt(x) {
  return state.begin + ((x - gutter()) / plotWidth()) * (state.end - state.begin);
}

// The ranks in sight, from first to last.
function visibleRanks() {
  const first = Math.max(0, Math.floor((scrollTop() - GAP) / layout.row));
  const last = Math.min(view.ranks - 1, Math.floor((scrollTop() + height - AXIS) / layout.row));
  return [first, last];
}

// Scrolls a rank into sight.
function reveal(rank) {
  const scroller = document.getElementById("scroller");
  const top = rowTop(rank);
  if (top < AXIS) scroller.scrollTop += top - AXIS - GAP;
  else if (top + layout.row > height) scroller.scrollTop += top + layout.row - height;
}

// What is at a place of the canvas: a stage, a bubble, a moment of memory, or a rank alone.
function hit(x, y) {
  if (y < AXIS || x < gutter()) return null;
  const rank = Math.floor((y - AXIS - GAP / 2 + scrollTop()) / layout.row);
  if (rank < 0 || rank >= view.ranks) return null;
  const time = timeAt(x);
  if (y >= memoryTop(rank)) return hasMemory() && y < memoryTop(rank) + MEMORY ? { what: "memory", rank, time } : null;
  const number = y < laneTop(rank, 0) + layout.lane + SLIP / 2 ? 0 : layout.lanes - 1;
  const track = shownTracks()[number];
  const stage = stageAt(track, rank, time);
  if (stage >= 0) return { what: "stage", rank, time, track, stage };
  const gap = track.gaps[rank].find((own) => own.start <= time && time <= own.end);
  return gap ? { what: "gap", rank, time, track, gap } : null;
}

// The stage at a time, or the nearest one within two pixels.
function stageAt(track, rank, time) {
  const row = track.rows[rank];
  const place = firstAfter(track, row, time);
  const near = (2 * (state.end - state.begin)) / plotWidth();
  let found = -1;
  let least = near;
  for (const own of [place - 1, place]) {
    if (own < 0 || own >= row.length) continue;
    const away = Math.max(track.start[row[own]] - time, time - track.end[row[own]], 0);
    if (away < least || (away === 0 && found < 0)) {
      found = row[own];
      least = away;
    }
  }
  return found;
}
