// Numbers and stages in words.

const TIME_UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
const BYTE_UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];

function significant(value, digits) {
  return String(Number(value.toPrecision(digits)));
}

function seconds(value, digits = 4) {
  if (Number.isNaN(value)) return "not run";
  if (report.unitless || value === 0) return significant(value, digits) + (report.unitless ? "" : "\u00a0s");
  for (const [size, unit] of TIME_UNITS) {
    if (Math.abs(value) >= size) return `${significant(value / size, digits)}\u00a0${unit}`;
  }
  return `${significant(value * 1e6, 3)}\u00a0µs`;
}

function bytes(value) {
  if (report.unitless) return significant(value, 4);
  for (const [size, unit] of BYTE_UNITS) {
    if (value >= size) return `${significant(value / size, 3)} ${unit}`;
  }
  return `${significant(value, 4)} B`;
}

function percent(share, digits = 1) {
  return `${(100 * share).toFixed(digits)}\u00a0%`;
}

// The share of a rank's time in which it idles.
function idleShare(track, rank) {
  const whole = track.idle[rank] + track.busy[rank];
  return whole > 0 ? track.idle[rank] / whole : 0;
}

function signed(value, shown) {
  return (value >= 0 ? "+" : "−") + shown(Math.abs(value));
}

// "3", or "3.1" where microbatches are cut into sub-microbatches.
function batchOf(stage) {
  return view.cut[view.module[stage]] ? `${view.microbatch[stage]}.${view.sub[stage]}` : String(view.microbatch[stage]);
}

function titleOf(stage) {
  return `${view.modules[view.module[stage]]} ${KIND_NAMES[view.kind[stage]]}`;
}

function shortOf(stage) {
  return `${KINDS[view.kind[stage]]} ${view.modules[view.module[stage]]} ${batchOf(stage)} chunk ${view.chunk[stage]}`;
}

function sentenceOf(stage) {
  const times = view.tracks.map((track) => `${track.name} ${seconds(track.start[stage])} to ${seconds(track.end[stage])}`);
  return `${titleOf(stage)}, microbatch ${batchOf(stage)}, chunk ${view.chunk[stage]}, rank ${view.rank[stage]}; ${times.join(", ")}. ${reasonOf(stage, mainTrack())}`;
}

// Why a stage started when it did: the last of what it had to wait for, and what it waited beyond that.
function reasonOf(stage, track) {
  const start = track.start[stage];
  if (Number.isNaN(start)) return "It did not run.";
  const before = track.before[stage];
  const tiny = SHORTEST_GAP * (view.end - view.begin);
  if (before < 0) return start - track.first > tiny ? `Nothing it needs ran before: it waited ${seconds(start - track.first)} from the batch's first stage.` : "First on its rank: it waited for nothing.";
  const late = start - track.end[before] - track.delay[before === -1 ? 0 : stage];
  const own = view.rank[before] === view.rank[stage];
  const what = `${shortOf(before)} on rank ${view.rank[before]}`;
  let text = own ? `Started after ${what} had ended` : `Waited for ${what}`;
  if (!own && track.delay[stage] > 0) text += ` and ${seconds(track.delay[stage])} of transfer`;
  if (late > tiny) {
    text += own || track.delay[stage] > 0 ? `, ${seconds(late)} later than it could: ` : `, ${seconds(late)} after its end: `;
    text += track.name === "measured" ? "messages, loading or the engine between stages" : "memory, or the order's choice";
  }
  return `${text}.`;
}
