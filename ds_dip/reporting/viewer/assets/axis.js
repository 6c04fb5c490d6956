// The axis of times above, and the ranks' labels at the left.

// Steps of 1, 2 or 5 that leave about 90 pixels between ticks.
function tickStep() {
  const rough = ((state.end - state.begin) * 90) / plotWidth();
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((own) => own * power >= rough);
  return factor * power;
}

function drawAxis(pen) {
  const tone = theme();
  const step = tickStep();
  const [size, unit] = report.unitless ? [1, ""] : TIME_UNITS.find(([own]) => step * 20 >= own) || TIME_UNITS[2];
  const decimals = Math.max(0, Math.min(9, -Math.floor(Math.log10(step / size) + 1e-9)));
  pen.fillStyle = tone.back;
  pen.fillRect(0, 0, width, AXIS);
  pen.strokeStyle = tone.line;
  pen.lineWidth = 1;
  pen.textAlign = "left";
  pen.fillStyle = tone.soft;
  pen.beginPath();
  for (let time = Math.ceil(state.begin / step) * step; time <= state.end; time += step) {
    const x = Math.round(xOf(time)) + 0.5;
    if (x < gutter()) continue;
    pen.moveTo(x, AXIS - 8);
    pen.lineTo(x, AXIS);
    const text = `${(time / size).toFixed(decimals)}${unit ? ` ${unit}` : ""}`;
    if (x + pen.measureText(text).width < width) pen.fillText(text, x + 3, AXIS - 11);
  }
  if (width >= NARROW) {
    pen.textAlign = "right";
    pen.fillText("bubble", gutter() - 7, AXIS / 2);
  }
  pen.moveTo(0, AXIS - 0.5);
  pen.lineTo(width, AXIS - 0.5);
  pen.stroke();
}

function drawGrid(pen) {
  const step = tickStep();
  pen.strokeStyle = theme().faint;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let time = Math.ceil(state.begin / step) * step; time <= state.end; time += step) {
    const x = Math.round(xOf(time)) + 0.5;
    pen.moveTo(x, AXIS);
    pen.lineTo(x, height);
  }
  pen.stroke();
}

function drawLabels(pen, rank) {
  const tone = theme();
  const tracks = shownTracks();
  const short = width < NARROW;
  pen.fillStyle = tone.back;
  pen.fillRect(0, rowTop(rank) - GAP / 2, gutter(), layout.row);
  pen.textAlign = "left";
  tracks.forEach((track, number) => {
    const y = laneTop(rank, number) + layout.lane / 2 + 0.5;
    const idle = idleShare(track, rank);
    if (number === 0) {
      pen.fillStyle = tone.ink;
      pen.font = BOLD;
      const name = short ? `r${rank}` : `rank ${rank}`;
      pen.fillText(name, 6, y);
      const after = 12 + pen.measureText(name).width;
      pen.font = FONT;
      pen.fillStyle = tone.soft;
      if (tracks.length === 2 && !short) pen.fillText(track.name, after, y);
    }
    pen.fillStyle = tone.soft;
    if (number === 1 && !short) pen.fillText(track.name, 6, y);
    pen.textAlign = "right";
    pen.fillText(percent(idle, short ? 0 : 1), gutter() - 7, y);
    pen.textAlign = "left";
  });
  if (hasMemory() && !short) {
    pen.fillStyle = tone.soft;
    pen.fillText("memory", 6, memoryTop(rank) + 9);
    pen.textAlign = "right";
    pen.fillText(`≤ ${bytes(view.memory[rank].peak)}`, gutter() - 7, memoryTop(rank) + 24);
    pen.textAlign = "left";
  }
}

// A line through all ranks at the pointer, with its time.
function drawCursor(pen) {
  const at = state.pointer;
  if (!at || at.x < gutter()) return;
  const tone = theme();
  pen.strokeStyle = tone.soft;
  pen.lineWidth = 1;
  pen.setLineDash([2, 3]);
  pen.beginPath();
  pen.moveTo(Math.round(at.x) + 0.5, AXIS);
  pen.lineTo(Math.round(at.x) + 0.5, height);
  pen.stroke();
  pen.setLineDash([]);
  const text = seconds(timeAt(at.x), 6);
  const wide = pen.measureText(text).width + 8;
  const x = Math.min(at.x - wide / 2, width - wide - 2);
  pen.fillStyle = tone.ink;
  pen.fillRect(x, 3, wide, AXIS - 8);
  pen.fillStyle = tone.back;
  pen.textAlign = "left";
  pen.fillText(text, x + 4, AXIS / 2);
}
