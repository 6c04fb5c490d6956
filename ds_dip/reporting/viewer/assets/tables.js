// The same in text: a summary, the ranks as a table, and the stages that were searched.

const MOST_ROWS = 200;

function tableOf(heads, rows) {
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const [name, kind] of heads) {
    const cell = element("th", name, kind);
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((value, at) => {
      const cell = line.insertCell();
      cell.className = heads[at][1];
      if (value instanceof Node) cell.append(value);
      else cell.textContent = value;
    });
  }
  return table;
}

function fillTables() {
  const heads = [["rank", ""], ["stages", ""]];
  for (const track of view.tracks) heads.push([`busy, ${track.name}`, ""], [`bubble, ${track.name}`, ""]);
  if (view.memory.length) heads.push(["peak memory, planned", ""], ["capacity", ""]);
  const rows = [];
  for (let rank = 0; rank < view.ranks; rank++) {
    const row = [String(rank), String(view.tracks[0].rows[rank].length)];
    for (const track of view.tracks) {
      row.push(seconds(track.busy[rank]), `${seconds(track.idle[rank])} (${percent(idleShare(track, rank))})`);
    }
    if (view.memory.length) {
      const capacity = view.capacity[rank];
      row.push(bytes(view.memory[rank].peak), capacity === null || capacity === undefined ? "no limit" : bytes(capacity));
    }
    rows.push(row);
  }
  document.querySelector("#ranks-table .wide").replaceChildren(tableOf(heads, rows));
  const facts = view.facts.map(([name, value]) => `${name} ${value}`).join(", ");
  document.getElementById("summary").textContent = `${report.title}, ${view.name}: ${facts}. Press question mark for keys; the ranks and stages are below as tables.`;
  document.getElementById("note").textContent = view.note;
}

// What explains the shown track in sentences.
function fillTexts() {
  const track = mainTrack();
  const texts = document.getElementById("texts");
  texts.replaceChildren();
  if (!track.explanation || !track.explanation.text.length) return;
  const list = element("ul");
  for (const text of track.explanation.text) list.append(element("li", text));
  texts.append(element("h2", `Why it takes as long${view.tracks.length === 2 ? `, as ${track.name}` : ""}`), list);
}

// Filled when it is opened, and again when the search changes.
function fillStages() {
  const details = document.getElementById("stages-table");
  if (!details.open) return;
  const track = mainTrack();
  let stages = state.found;
  if (state.matches === null) {
    stages = Array.from(view.rank.keys()).filter((stage) => !Number.isNaN(track.start[stage]));
    stages.sort((a, b) => track.start[a] - track.start[b]);
  }
  const heads = [["stage", "text"], ["microbatch", ""], ["chunk", ""], ["rank", ""]];
  for (const own of view.tracks) heads.push([`${own.name} start`, ""], [`${own.name} length`, ""]);
  heads.push(["why then", "text"]);
  const rows = stages.slice(0, MOST_ROWS).map((stage) => {
    const button = element("button", titleOf(stage));
    button.type = "button";
    button.addEventListener("click", () => {
      centre(stage);
      select(stage);
      canvas.focus();
    });
    const times = view.tracks.flatMap((own) => [seconds(own.start[stage]), seconds(own.end[stage] - own.start[stage])]);
    return [button, batchOf(stage), String(view.chunk[stage]), String(view.rank[stage]), ...times, reasonOf(stage, track)];
  });
  details.querySelector("p").textContent = `The first ${rows.length} of ${stages.length.toLocaleString("en")} stages in order of time${state.matches ? " that were found" : "; search to choose others"}.`;
  details.querySelector(".wide").replaceChildren(tableOf(heads, rows));
}

document.getElementById("stages-table").addEventListener("toggle", fillStages);
