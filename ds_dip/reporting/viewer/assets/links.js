// What goes between stages: transfers as arrows, the critical path, and what let the chosen stage start.

const MOST_ARROWS = 2500; // more at once are no picture

// Draws transfers in sight; returns how many were left out.
function drawTransfers(pen) {
  const track = mainTrack();
  const number = shownTracks().indexOf(track);
  const { source, target } = view.arrows;
  const chosen = [];
  let others = 0;
  if (state.transfers) {
    for (let arrow = 0; arrow < source.length; arrow++) {
      if (!inSight(track, source[arrow], target[arrow])) continue;
      if (dimmed(source[arrow]) && dimmed(target[arrow])) continue;
      others += 1;
      if (others <= MOST_ARROWS) chosen.push(arrow);
    }
  }
  const tone = theme();
  if (others <= MOST_ARROWS) strokeArrows(pen, chosen, track, number, tone.ink, 1, 0.65);
  if (state.selected >= 0) {
    const own = [...view.arrowsIn[state.selected], ...view.arrowsOut[state.selected]];
    strokeArrows(pen, own.filter((arrow) => inSight(track, source[arrow], target[arrow])), track, number, tone.ink, 2, 1);
  }
  return others > MOST_ARROWS ? others : 0;
}

function inSight(track, source, target) {
  return track.end[source] <= state.end && track.start[target] >= state.begin;
}

function strokeArrows(pen, arrows, track, number, colour, thick, alpha) {
  if (arrows.length === 0) return;
  const middle = (stage) => laneTop(view.rank[stage], number) + layout.lane / 2;
  pen.globalAlpha = alpha;
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineWidth = thick;
  const heads = [];
  pen.beginPath();
  for (const arrow of arrows) {
    const source = view.arrows.source[arrow];
    const target = view.arrows.target[arrow];
    const [x0, y0, x1, y1] = [xOf(track.end[source]), middle(source), xOf(track.start[target]), middle(target)];
    if ((y0 < 0 && y1 < 0) || (y0 > height && y1 > height)) continue;
    const bend = Math.max(6, Math.min(60, Math.abs(x1 - x0) / 2));
    pen.moveTo(x0, y0);
    pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    heads.push(x1, y1);
  }
  pen.stroke();
  pen.beginPath();
  for (let at = 0; at < heads.length; at += 2) {
    pen.moveTo(heads[at], heads[at + 1]);
    pen.lineTo(heads[at] - 6, heads[at + 1] - 3.5);
    pen.lineTo(heads[at] - 6, heads[at + 1] + 3.5);
  }
  pen.fill();
  pen.globalAlpha = 1;
}

function outline(pen, stage, track, number, colour, thick, dashed = false) {
  if (Number.isNaN(track.start[stage])) return;
  const x = Math.max(xOf(track.start[stage]), gutter() - 4);
  const right = Math.min(xOf(track.end[stage]), gutter() + plotWidth() + 4);
  if (right < gutter() || x > gutter() + plotWidth()) return;
  pen.strokeStyle = colour;
  pen.lineWidth = thick;
  pen.setLineDash(dashed ? [4, 3] : []);
  pen.strokeRect(x - 0.5, laneTop(view.rank[stage], number) - 0.5, Math.max(2, right - x), layout.lane + 1);
  pen.setLineDash([]);
}

// The path that no stage can be left out of: its stages outlined and joined.
function drawPath(pen) {
  const track = mainTrack();
  const path = track.path;
  if (!state.path || path.length === 0) return;
  const number = shownTracks().indexOf(track);
  const tone = theme();
  const middle = (stage) => laneTop(view.rank[stage], number) + layout.lane / 2;
  pen.strokeStyle = tone.path;
  pen.lineWidth = 2;
  pen.beginPath();
  for (let at = 1; at < path.length; at++) {
    const [one, other] = [path[at - 1], path[at]];
    if (track.end[one] > state.end || track.start[other] < state.begin || view.rank[one] === view.rank[other]) continue;
    pen.moveTo(xOf(track.end[one]), middle(one));
    pen.lineTo(xOf(track.start[other]), middle(other));
  }
  pen.stroke();
  for (const stage of path) outline(pen, stage, track, number, tone.path, 2);
}

// The chosen stage in every lane, what let it start, and what is under the pointer.
function drawChosen(pen) {
  const tone = theme();
  const tracks = shownTracks();
  const hovered = state.hovered && state.hovered.what === "stage" ? state.hovered.stage : -1;
  tracks.forEach((track, number) => {
    if (hovered >= 0) outline(pen, hovered, track, number, tone.ink, 1.5);
    if (state.selected < 0) return;
    outline(pen, state.selected, track, number, tone.ink, 2.5);
    const before = track.before[state.selected];
    if (before >= 0) outline(pen, before, track, number, tone.ink, 2, true);
  });
  if (tracks.length === 2) for (const stage of new Set([hovered, state.selected])) drawSlip(pen, stage, tracks);
}

// From every planned start to the measured one, in the colours of late and early; lines that would touch are left out.
function drawSlips(pen, rank) {
  const [planned, measured] = view.tracks;
  const row = planned.rows[rank];
  const top = laneTop(rank, 0) + layout.lane;
  const lines = { late: [], early: [] };
  let [last0, last1] = [-Infinity, -Infinity];
  for (let place = Math.max(0, firstAfter(planned, row, state.begin) - 1); place < row.length; place++) {
    const stage = row[place];
    if (Number.isNaN(measured.start[stage])) continue;
    const [x0, x1] = [xOf(planned.start[stage]), xOf(measured.start[stage])];
    if (Math.min(x0, x1) > gutter() + plotWidth()) break;
    // Flatter lines come closer to each other.
    const apart = Math.max(7, (3 * Math.hypot(x1 - x0, SLIP)) / SLIP);
    if (x0 - last0 < apart || x1 - last1 < apart) continue;
    [last0, last1] = [x0, x1];
    lines[x1 >= x0 ? "late" : "early"].push(x0, x1);
  }
  pen.lineWidth = 1;
  for (const [side, colour] of [["late", SLOWER[7]], ["early", SLOWER[1]]]) {
    pen.strokeStyle = colour;
    pen.beginPath();
    for (let at = 0; at < lines[side].length; at += 2) {
      pen.moveTo(lines[side][at], top + 1);
      pen.lineTo(lines[side][at + 1], top + SLIP - 1);
    }
    pen.stroke();
  }
}

// From where a stage was planned to where it ran.
function drawSlip(pen, stage, tracks) {
  if (stage < 0 || tracks.some((track) => Number.isNaN(track.start[stage]))) return;
  const [planned, measured] = tracks;
  const top = laneTop(view.rank[stage], 0) + layout.lane;
  pen.strokeStyle = theme().ink;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const side of ["start", "end"]) {
    pen.moveTo(xOf(planned[side][stage]), top);
    pen.lineTo(xOf(measured[side][stage]), top + SLIP);
  }
  pen.stroke();
}
