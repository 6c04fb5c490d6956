// The whole drawing, once a frame at most.

const FONT = '11px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif';
const BOLD = `600 ${FONT}`;
const canvas = document.getElementById("timeline");
const pen = canvas.getContext("2d", { alpha: false });

function resize() {
  const box = document.getElementById("scroller");
  const ratio = window.devicePixelRatio || 1;
  width = box.clientWidth;
  height = box.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  relayout();
  drawMinimap();
  redraw();
}

function draw() {
  const began = performance.now();
  const ratio = window.devicePixelRatio || 1;
  const tone = theme();
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = tone.back;
  pen.fillRect(0, 0, width, height);
  pen.font = FONT;
  pen.textBaseline = "middle";
  drawGrid(pen);
  const [first, last] = visibleRanks();
  pen.textAlign = "center";
  pen.save();
  pen.beginPath();
  pen.rect(gutter(), AXIS, plotWidth() + 6, height);
  pen.clip();
  for (let rank = first; rank <= last; rank++) {
    shownTracks().forEach((track, number) => {
      drawGaps(pen, track, rank, laneTop(rank, number), layout.lane);
      drawLane(pen, track, rank, laneTop(rank, number), layout.lane);
    });
    if (layout.lanes === 2) drawSlips(pen, rank);
    if (hasMemory()) drawMemory(pen, rank);
  }
  const left = drawTransfers(pen);
  drawPath(pen);
  drawChosen(pen);
  pen.restore();
  for (let rank = first; rank <= last; rank++) drawLabels(pen, rank);
  drawAxis(pen);
  drawCursor(pen);
  drawWindow();
  status(left);
  state.frames += 1;
  state.drawing = performance.now() - began;
}

function status(left) {
  const shown = `${seconds(Math.max(state.begin, view.begin))} to ${seconds(Math.min(state.end, view.end))}`;
  const arrows = left ? ` ${left.toLocaleString("en")} transfers are in sight, too many to draw: zoom in, search or choose a stage.` : "";
  const line = document.getElementById("status");
  const text = `Shown: ${shown}.${arrows}`;
  if (line.textContent !== text) line.textContent = text;
}
