// Search: words of a module or direction, and fields: rank, microbatch, sub, chunk, task.

const FIELDS = [
  [/^(?:microbatch|mb|m)[:=]?(\d+)(?:\.(\d+))?$/, (stage, number, sub) => view.microbatch[stage] === number && (sub === undefined || view.sub[stage] === sub)],
  [/^(?:rank|r)[:=]?(\d+)$/, (stage, number) => view.rank[stage] === number],
  [/^(?:chunk|c)[:=]?(\d+)$/, (stage, number) => view.chunk[stage] === number],
  [/^(?:sub|s)[:=]?(\d+)$/, (stage, number) => view.sub[stage] === number],
  [/^(?:task:?|id:?|#)(\d+)$/, (stage, number) => (view.task ? view.task[stage] : stage) === number],
];

// A test of one word.
function testOf(word) {
  for (const [form, test] of FIELDS) {
    const parts = form.exec(word);
    if (parts) {
      const numbers = parts.slice(1).map((part) => (part === undefined ? undefined : Number(part)));
      return (stage) => test(stage, ...numbers);
    }
  }
  const kind = KINDS.findIndex((own, at) => own.toLowerCase() === word || (word.length > 2 && KIND_NAMES[at].startsWith(word)));
  if (kind >= 0) return (stage) => view.kind[stage] === kind;
  if (word === "critical") return (stage) => mainTrack().onPath[stage] === 1;
  const modules = view.modules.map((module) => module.toLowerCase().includes(word));
  return (stage) => modules[view.module[stage]];
}

function search(query) {
  const tests = query.toLowerCase().split(/\s+/).filter(Boolean).map(testOf);
  if (tests.length === 0) {
    state.matches = null;
    state.found = [];
  } else {
    state.matches = new Uint8Array(view.count);
    for (let stage = 0; stage < view.count; stage++) if (tests.every((test) => test(stage))) state.matches[stage] = 1;
    const track = mainTrack();
    state.found = Array.from(view.rank.keys()).filter((stage) => state.matches[stage] && !Number.isNaN(track.start[stage]));
    state.found.sort((a, b) => track.start[a] - track.start[b]);
  }
  tellFound(-1);
  fillStages();
  drawMinimap();
  redraw();
}

function tellFound(at) {
  const count = state.found.length;
  const text = state.matches === null ? "" : count === 0 ? "nothing found" : at < 0 ? `${count.toLocaleString("en")} found` : `${at + 1} of ${count}`;
  document.getElementById("found").textContent = text;
}

// Goes to the next (1) or previous (-1) of what was found.
function goFound(direction) {
  if (state.found.length === 0) return;
  const present = state.found.indexOf(state.selected);
  const at = present < 0 ? (direction > 0 ? 0 : state.found.length - 1) : (present + direction + state.found.length) % state.found.length;
  centre(state.found[at]);
  select(state.found[at]);
  tellFound(at);
}

const query = document.getElementById("query");
query.addEventListener("input", () => search(query.value));
document.getElementById("search").addEventListener("submit", (event) => event.preventDefault());
query.addEventListener("keydown", (event) => {
  if (event.key === "Enter") {
    event.preventDefault();
    goFound(event.shiftKey ? -1 : 1);
  } else if (event.key === "Escape") {
    event.stopPropagation();
    query.value = "";
    search("");
    canvas.focus();
  }
});
