// Memory of each rank under its stages: what is held from each moment on, and the capacity where it has one.

// The top of the scale: the capacity where the peak comes near it, else the highest peak of all ranks.
function memoryScale() {
  const capacity = largest(view.capacity.map((own) => own || 0));
  return capacity > 0 && capacity < 2.5 * view.peak ? Math.max(capacity, view.peak) * 1.04 : view.peak * 1.04;
}

function drawMemory(pen, rank) {
  const row = view.memory[rank];
  const top = memoryTop(rank);
  const tone = theme();
  const scale = MEMORY / memoryScale();
  pen.fillStyle = tone.faint;
  pen.fillRect(gutter(), top, plotWidth(), MEMORY);
  const capacity = view.capacity[rank];
  pen.fillStyle = tone.memory;
  pen.globalAlpha = 0.75;
  // Of all moments in a pixel the highest: peaks stay visible however far out it is zoomed.
  const left = gutter();
  const right = left + plotWidth();
  let next = momentAt(row, state.begin) + 1;
  let held = next > 0 ? row.bytes[next - 1] : 0;
  let drawn = -1;
  pen.beginPath();
  pen.moveTo(left, top + MEMORY);
  for (let x = left; x < right; x++) {
    const until = timeAt(x + 1);
    let high = held;
    for (; next < row.at.length && row.at[next] < until; next++) {
      held = row.bytes[next];
      if (held > high) high = held;
    }
    if (high === drawn) continue;
    if (drawn >= 0) pen.lineTo(x, top + MEMORY - drawn * scale);
    pen.lineTo(x, top + MEMORY - high * scale);
    drawn = high;
  }
  pen.lineTo(right, top + MEMORY - drawn * scale);
  pen.lineTo(right, top + MEMORY);
  pen.fill();
  pen.globalAlpha = 1;
  if (capacity !== null && capacity !== undefined && capacity * scale <= MEMORY) {
    pen.strokeStyle = tone.over;
    pen.lineWidth = 1;
    pen.setLineDash([5, 3]);
    pen.beginPath();
    pen.moveTo(gutter(), Math.round(top + MEMORY - capacity * scale) + 0.5);
    pen.lineTo(right, Math.round(top + MEMORY - capacity * scale) + 0.5);
    pen.stroke();
    pen.setLineDash([]);
  }
}

// The last moment at or before a time; -1 before the first.
function momentAt(row, time) {
  let low = 0;
  let high = row.at.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.at[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
