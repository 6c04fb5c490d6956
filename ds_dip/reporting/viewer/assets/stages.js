// Stages of a lane, with what is too small for a pixel drawn together, and the bubbles between them.

const ALONE = 1.5; // pixels above which a stage is drawn by itself
const NARROW_GAP = 3; // pixels below which a bubble is drawn with its neighbours
const LEVELS = 4; // of coverage, in which pixels of many stages are drawn

// What the pixel at `at` holds so far, a sum a style; styles in use are listed.
const pixel = { at: -1, sums: new Float64Array(0), used: [], covered: 0 };

function drawLane(pen, track, rank, top, tall, named = true) {
  const row = track.rows[rank];
  const scale = plotWidth() / (state.end - state.begin);
  const left = gutter();
  if (pixel.sums.length < 2 * styles.list.length) pixel.sums = new Float64Array(2 * styles.list.length);
  const bars = [];
  const run = { x: 0, width: 0, key: -1, level: 0 };
  for (let place = firstAfter(track, row, state.begin); place < row.length; place++) {
    const stage = row[place];
    const start = track.start[stage];
    if (start > state.end) break;
    const x = left + (start - state.begin) * scale;
    const wide = (track.end[stage] - start) * scale;
    if (wide >= ALONE) {
      bars.push(stage, x, wide);
      continue;
    }
    const at = Math.floor(x);
    if (at !== pixel.at) {
      flush(pen, run, top, tall);
      pixel.at = at;
    }
    const key = 2 * styles.of[stage] + (dimmed(stage) ? 1 : 0);
    if (pixel.sums[key] === 0) pixel.used.push(key);
    pixel.sums[key] += Math.max(wide, 1e-6);
    pixel.covered += wide;
  }
  flush(pen, run, top, tall);
  emit(pen, run, top, tall);
  drawBars(pen, bars, top, tall, named);
}

// One pixel's stages become one mark, in the style that takes most of it; equal neighbours become one rectangle.
function flush(pen, run, top, tall) {
  if (pixel.used.length === 0) return;
  let key = pixel.used[0];
  for (const own of pixel.used) if (pixel.sums[own] > pixel.sums[key]) key = own;
  const level = Math.max(1, Math.ceil(LEVELS * Math.min(1, pixel.covered)));
  if (run.key === key && run.level === level && run.x + run.width === pixel.at) {
    run.width += 1;
  } else {
    emit(pen, run, top, tall);
    run.x = pixel.at;
    run.width = 1;
    run.key = key;
    run.level = level;
  }
  for (const own of pixel.used) pixel.sums[own] = 0;
  pixel.used.length = 0;
  pixel.covered = 0;
  pixel.at = -1;
}

function emit(pen, run, top, tall) {
  if (run.key < 0) return;
  pen.globalAlpha = (run.key & 1 ? DIM : 1) * (0.25 + (0.75 * run.level) / LEVELS);
  pen.fillStyle = styles.list[run.key >> 1].fill;
  pen.fillRect(run.x, top, run.width, tall);
  pen.globalAlpha = 1;
  run.key = -1;
}

function drawBars(pen, bars, top, tall, named) {
  const left = gutter();
  const right = left + plotWidth();
  let filled = "";
  for (let at = 0; at < bars.length; at += 3) {
    const stage = bars[at];
    const style = styles.list[styles.of[stage]];
    const x = Math.max(bars[at + 1], left - 2);
    // A seam between neighbours, where there is room for one.
    const wide = Math.min(bars[at + 1] + bars[at + 2], right + 2) - x - (bars[at + 2] >= 4 ? 1 : 0);
    pen.globalAlpha = dimmed(stage) ? DIM : 1;
    if (style.fill !== filled) pen.fillStyle = filled = style.fill;
    pen.fillRect(x, top, wide, tall);
    if (style.pattern && wide >= 4) {
      pen.fillStyle = style.pattern;
      pen.fillRect(x, top, wide, tall);
      filled = "";
    }
    if (named && wide >= 9 && tall >= 11) {
      const text = wide >= 120 ? `${KINDS[view.kind[stage]]} ${view.modules[view.module[stage]]} ${batchOf(stage)}` : batchOf(stage);
      if (pen.measureText(text).width < wide - 2) {
        pen.fillStyle = style.ink;
        filled = "";
        pen.fillText(text, x + wide / 2, top + tall / 2 + 0.5);
      }
    }
  }
  pen.globalAlpha = 1;
}

// Whether a stage steps back: it is not among what was searched, or not of the chosen microbatch.
function dimmed(stage) {
  if (state.matches) return state.matches[stage] === 0;
  return state.selected >= 0 && view.microbatch[stage] !== view.microbatch[state.selected];
}

// Bubbles of a lane; those that are too narrow are drawn with their neighbours, by the cause of most of it.
function drawGaps(pen, track, rank, top, tall) {
  const run = { x: 0, end: -Infinity, sums: new Map() };
  for (const gap of track.gaps[rank]) {
    if (gap.end < state.begin || gap.start > state.end) continue;
    const x = Math.max(xOf(gap.start), gutter());
    const end = Math.min(xOf(gap.end), gutter() + plotWidth());
    const narrow = end - x < NARROW_GAP;
    if (!narrow || x - run.end > 1 || run.end - run.x > 2 * NARROW_GAP) {
      drawRun(pen, run, top, tall);
      run.x = x;
    }
    if (narrow) {
      run.end = end;
      run.sums.set(gap.cause, (run.sums.get(gap.cause) || 0) + end - x);
    } else drawGap(pen, gap.cause, x, end - x, top, tall, seconds(gap.end - gap.start, 3));
  }
  drawRun(pen, run, top, tall);
}

function drawRun(pen, run, top, tall) {
  if (run.end - run.x >= 1) {
    const [cause] = [...run.sums].reduce((one, other) => (other[1] > one[1] ? other : one));
    drawGap(pen, cause, run.x, run.end - run.x, top, tall, "");
  }
  run.sums.clear();
  run.end = -Infinity;
}

function drawGap(pen, cause, x, wide, top, tall, length) {
  const tone = theme();
  const { colour, pattern } = causeStyle(cause);
  pen.globalAlpha = cause === null ? 0.55 : 0.75;
  pen.fillStyle = pattern;
  pen.fillRect(x, top + 1, wide, tall - 2);
  pen.globalAlpha = 1;
  if (cause !== null) {
    pen.fillStyle = colour;
    pen.fillRect(x, top + tall - 3, Math.max(1, wide - 1), 2);
  }
  if (!length || wide < 56 || tall < 13) return;
  const text = cause === null || wide < 130 ? length : `${cause} ${length}`;
  const needed = pen.measureText(text).width;
  if (needed > wide - 12) return;
  pen.fillStyle = tone.back;
  pen.fillRect(x + wide / 2 - needed / 2 - 3, top + 2, needed + 6, tall - 5);
  pen.fillStyle = tone.soft;
  pen.fillText(text, x + wide / 2, top + tall / 2 + 0.5);
}
