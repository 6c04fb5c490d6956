// The embedded document, and each view of it as flat arrays, made when it is first shown.

const KINDS = ["F", "B", "W"];
const KIND_NAMES = ["forward", "backward", "weight gradient"];
// Of a batch's length: shorter gaps between stages are rounding.
const SHORTEST_GAP = 1e-6;

const report = JSON.parse(document.getElementById("report-data").textContent);
const decoded = new Map();

function viewOf(number) {
  if (!decoded.has(number)) decoded.set(number, decode(report.views[number]));
  return decoded.get(number);
}

function decode(raw) {
  const columns = raw.stages;
  const count = columns.rank.length;
  const view = {
    name: raw.name, ranks: raw.ranks, facts: raw.facts, note: raw.note, warning: raw.warning, modules: raw.modules, count,
    rank: Int32Array.from(columns.rank), kind: Uint8Array.from(columns.kind), module: Uint16Array.from(columns.module),
    chunk: Int32Array.from(columns.chunk), microbatch: Int32Array.from(columns.microbatch), sub: Int32Array.from(columns.sub),
    task: columns.task || null, tokens: columns.tokens || null,
    arrows: raw.arrows, capacity: raw.capacity, explanations: raw.explanations || [],
  };
  // Which modules have microbatches that are cut.
  view.cut = view.modules.map(() => false);
  view.sub.forEach((sub, stage) => { if (sub > 0) view.cut[view.module[stage]] = true; });
  view.tracks = raw.tracks.map((track) => decodeTrack(view, track));
  view.begin = Math.min(0, ...view.tracks.map((track) => track.first));
  view.end = Math.max(...view.tracks.map((track) => Math.max(track.last, ...track.gaps.map((row) => (row.length ? row[row.length - 1].end : 0)))));
  if (view.end <= view.begin) view.end = view.begin + 1;
  view.memory = raw.memory.map((row) => ({ at: Float64Array.from(row.at), bytes: Float64Array.from(row.bytes), peak: largest(row.bytes) }));
  view.peak = largest(view.memory.map((row) => row.peak));
  view.arrowsIn = grouped(raw.arrows.target, count);
  view.arrowsOut = grouped(raw.arrows.source, count);
  return view;
}

function decodeTrack(view, raw) {
  const numbers = (values) => Float64Array.from(values, (value) => (value === null ? NaN : value));
  const track = { name: raw.name, start: numbers(raw.start), end: numbers(raw.end), before: raw.before, delay: raw.delay };
  const rows = Array.from({ length: view.ranks }, () => []);
  let begin = Infinity;
  let end = -Infinity;
  for (let stage = 0; stage < view.count; stage++) {
    if (Number.isNaN(track.start[stage])) continue;
    rows[view.rank[stage]].push(stage);
    begin = Math.min(begin, track.start[stage]);
    end = Math.max(end, track.end[stage]);
  }
  track.first = begin === Infinity ? 0 : begin;
  track.last = end === -Infinity ? 0 : end;
  const inTime = (a, b) => track.start[a] - track.start[b] || track.end[a] - track.end[b];
  track.rows = rows.map((row) => Int32Array.from(row.sort(inTime)));
  // Where a stage is in its rank's row.
  track.place = new Int32Array(view.count).fill(-1);
  for (const row of track.rows) row.forEach((stage, place) => { track.place[stage] = place; });
  track.busy = track.rows.map((row) => row.reduce((sum, stage) => sum + track.end[stage] - track.start[stage], 0));
  track.explanation = view.explanations.find((own) => own.track === raw.name) || null;
  track.gaps = track.rows.map((row, rank) => (track.explanation ? [] : gapsOf(track, row, rank)));
  for (const gap of track.explanation ? track.explanation.bubbles : []) track.gaps[gap.rank].push(gap);
  for (const row of track.gaps) row.sort((a, b) => a.start - b.start);
  track.idle = track.gaps.map((row) => row.reduce((sum, gap) => sum + gap.end - gap.start, 0));
  track.path = track.explanation ? track.explanation.critical_path : [];
  track.onPath = new Uint8Array(view.count);
  for (const stage of track.path) track.onPath[stage] = 1;
  track.causes = causesOf(track);
  return track;
}

// The idle intervals of a rank between the batch's first start and its last end.
function gapsOf(track, row, rank) {
  const gaps = [];
  const shortest = SHORTEST_GAP * (track.last - track.first);
  let free = track.first;
  for (const stage of row) {
    if (track.start[stage] - free > shortest) gaps.push({ rank, start: free, end: track.start[stage], cause: null });
    free = Math.max(free, track.end[stage]);
  }
  if (track.last - free > shortest) gaps.push({ rank, start: free, end: track.last, cause: null });
  return gaps;
}

// Causes of bubbles with their sums over all ranks, the largest first.
function causesOf(track) {
  const sums = new Map();
  for (const gap of track.explanation ? track.explanation.bubbles : []) {
    sums.set(gap.cause, (sums.get(gap.cause) || 0) + gap.end - gap.start);
  }
  return [...sums].sort((a, b) => b[1] - a[1]).map(([cause, sum]) => ({ cause, sum }));
}

function largest(values) {
  let found = 0;
  for (const value of values) if (value > found) found = value;
  return found;
}

// Positions of `keys` by key, as lists.
function grouped(keys, count) {
  const lists = Array.from({ length: count }, () => []);
  keys.forEach((key, place) => lists[key].push(place));
  return lists;
}

// The first place in a row whose stage ends after `time`.
function firstAfter(track, row, time) {
  let low = 0;
  let high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (track.end[row[middle]] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}
