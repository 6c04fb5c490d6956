// The card beside what is under the pointer, or else beside the chosen stage.

const card = document.getElementById("card");

function element(tag, text = "", kind = "") {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function showCard() {
  const shown = state.hovered || (state.selected >= 0 ? { what: "stage", stage: state.selected, track: mainTrack(), chosen: true } : null);
  card.hidden = shown === null;
  if (shown === null) return;
  card.replaceChildren();
  if (shown.what === "stage") stageCard(shown);
  else if (shown.what === "gap") gapCard(shown);
  else memoryCard(shown);
  placeCard(shown);
}

function listOf(rows) {
  const list = element("dl");
  for (const [name, value] of rows) list.append(element("dt", name), element("dd", value));
  return list;
}

function swatchOf(style) {
  const swatch = element("canvas", "", "swatch");
  swatch.width = 22;
  swatch.height = 14;
  const own = swatch.getContext("2d");
  own.fillStyle = style.fill;
  own.fillRect(0, 0, 22, 14);
  if (style.pattern) {
    own.fillStyle = style.pattern;
    own.fillRect(0, 0, 22, 14);
  }
  return swatch;
}

function stageCard({ stage, track }) {
  const title = element("h3");
  title.append(swatchOf(styles.list[styles.of[stage]]), titleOf(stage));
  const rows = [["microbatch", String(view.microbatch[stage])]];
  if (view.cut[view.module[stage]]) rows.push(["sub-microbatch", String(view.sub[stage])]);
  rows.push(["chunk", String(view.chunk[stage])], ["rank", String(view.rank[stage])]);
  if (view.task) rows.push(["task", `#${view.task[stage]}`]);
  if (view.tokens && view.tokens[stage] !== null) rows.push(["tokens", view.tokens[stage].toLocaleString("en")]);
  for (const own of view.tracks) {
    const [start, end] = [own.start[stage], own.end[stage]];
    rows.push([own.name, Number.isNaN(start) ? "not run" : `${seconds(start)} to ${seconds(end)}: ${seconds(end - start)}`]);
  }
  if (view.tracks.length === 2) rows.push(["difference", differenceOf(stage)]);
  if (track.onPath[stage]) rows.push(["critical path", "it is on it"]);
  card.append(title, listOf(rows), element("p", reasonOf(stage, track)));
}

function differenceOf(stage) {
  const [planned, measured] = view.tracks;
  const [wanted, took] = [planned, measured].map((track) => track.end[stage] - track.start[stage]);
  if (Number.isNaN(wanted) || Number.isNaN(took)) return "not in both";
  const short = (value) => seconds(value, 3);
  const longer = wanted > 0 ? ` (${signed(took / wanted - 1, percent)})` : "";
  return `starts ${signed(measured.start[stage] - planned.start[stage], short)}, lasts ${signed(took - wanted, short)}${longer}`;
}

// A cause and what it means: "peer: waits for a task of another rank".
function causeText(cause) {
  return report.causes[cause] ? `${cause}: ${report.causes[cause]}` : cause;
}

function gapCard({ gap, track, rank }) {
  const rows = [
    ["rank", String(rank)], [track.name, `${seconds(gap.start)} to ${seconds(gap.end)}: ${seconds(gap.end - gap.start)}`],
    ["of the batch", percent((gap.end - gap.start) / (track.idle[rank] + track.busy[rank]))],
  ];
  if (gap.cause !== null) rows.push(["cause", causeText(gap.cause)]);
  if (gap.stage !== undefined) rows.push(["due to", `${shortOf(gap.stage)} on rank ${view.rank[gap.stage]}`]);
  card.append(element("h3", "Bubble"), listOf(rows));
  const row = track.rows[rank];
  const next = row[firstAfter(track, row, gap.end)];
  if (next === undefined) card.append(element("p", "Nothing more runs on this rank."));
  else card.append(element("p", `Next: ${shortOf(next)}. ${reasonOf(next, track)}`));
}

function memoryCard({ rank, time }) {
  const row = view.memory[rank];
  const at = momentAt(row, time);
  const rows = [["held", bytes(at < 0 ? 0 : row.bytes[at])], ["highest", bytes(row.peak)]];
  const capacity = view.capacity[rank];
  if (capacity !== null && capacity !== undefined) rows.push(["capacity", `${bytes(capacity)} (${percent(row.peak / capacity)} used at most)`]);
  card.append(element("h3", `Memory of rank ${rank}, planned`), listOf([["at", seconds(time, 5)], ...rows]));
}

// Beside the pointer, or under the chosen stage, inside the timeline.
function placeCard(shown) {
  let at = state.pointer;
  if (shown.chosen || !at) {
    const track = shown.track;
    if (!track || Number.isNaN(track.start[shown.stage])) return;
    const x = Math.min(Math.max(xOf(track.start[shown.stage]), gutter()), width - 40);
    at = { x, y: laneTop(view.rank[shown.stage], shownTracks().indexOf(track)) + layout.lane };
    const away = xOf(track.end[shown.stage]) < gutter() || xOf(track.start[shown.stage]) > width;
    card.hidden = away || at.y < AXIS || at.y > height;
    if (card.hidden) return;
  }
  const box = card.getBoundingClientRect();
  const right = at.x + 16 + box.width < width ? at.x + 16 : Math.max(4, at.x - 16 - box.width);
  const below = at.y + 14 + box.height < height ? at.y + 14 : Math.max(4, at.y - 14 - box.height);
  card.style.left = `${right}px`;
  card.style.top = `${below}px`;
}
