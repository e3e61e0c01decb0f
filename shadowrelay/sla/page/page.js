"use strict";
// Comfort only: the page says everything without it. Tables sort and can be saved as CSV, plots tell the figure under the pointer, links open folded traces.

function keyOf(row, index) {
  const cell = row.cells[index];
  const key = cell.dataset.key ?? cell.querySelector("time")?.dateTime ?? cell.textContent.trim();
  const number = cell.dataset.key === undefined ? NaN : Number(key);
  return Number.isNaN(number) ? key : number;
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

function sort(table, index) {
  const head = table.tHead.rows[0].cells[index];
  const isDown = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => [keyOf(row, index), row]);
  rows.sort(([one], [other]) => (isDown ? compare(other, one) : compare(one, other)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, index));
    head.append(button);
  });
}

function textOf(cell) {
  const copy = cell.cloneNode(true);
  for (const part of copy.querySelectorAll("[aria-hidden]")) part.remove();
  for (const time of copy.querySelectorAll("time")) time.textContent = time.dateTime;
  // lines of their own on the page are words apart here
  for (const part of copy.querySelectorAll(".by, b, small, li")) {
    part.before(" ");
    part.after(" ");
  }
  return copy.textContent.trim().replace(/\s+/g, " ");
}

function csvOf(table) {
  // a spreadsheet must not take what a sender wrote for a formula
  const quoted = (cell) => `"${textOf(cell).replace(/^[=+@-]/, "'$&").replaceAll('"', '""')}"`;
  return [...table.rows].map((row) => [...row.cells].map(quoted).join(",") + "\r\n").join("");
}

for (const box of document.querySelectorAll(".scroll")) {
  const table = box.querySelector("table");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "csv";
  button.textContent = "CSV";
  button.title = "Save this table as CSV";
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csvOf(table)], { type: "text/csv" }));
    link.download = `${table.caption.id.replace(/(-table)?-caption$/, "")}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  table.caption.firstElementChild.append(button);
}

const widths = new ResizeObserver((boxes) => {
  for (const { target } of boxes) target.classList.toggle("wide", target.scrollWidth > target.clientWidth + 1);
});
for (const box of document.querySelectorAll(".scroll")) widths.observe(box);

for (const figure of document.querySelectorAll("figure")) {
  const plot = figure.querySelector("svg.plot");
  const cross = plot.querySelector(".cross");
  const reading = figure.querySelector(".reading");
  const heads = [...figure.querySelectorAll("thead th")].map((head) => head.textContent);
  const rows = [...figure.querySelectorAll("tbody tr")];
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * plot.viewBox.baseVal.width;
    const nearest = rows.reduce((best, row) => (Math.abs(row.dataset.x - x) < Math.abs(best.dataset.x - x) ? row : best), rows[0]);
    cross.setAttribute("x1", nearest.dataset.x);
    cross.setAttribute("x2", nearest.dataset.x);
    cross.classList.add("on");
    const [when, ...values] = [...nearest.cells].map((cell) => cell.textContent);
    reading.textContent = `${when} · ` + values.map((value, index) => `${heads[index + 1]} ${value}`).join(" · ");
  });
  plot.addEventListener("pointerleave", () => {
    cross.classList.remove("on");
    reading.textContent = "";
  });
}

function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  if (!(target instanceof HTMLDetailsElement)) return false;
  for (let one = target; one; one = one.parentElement.closest("details")) one.open = true;
  target.scrollIntoView();
  target.querySelector("summary").focus();
  return true;
}

addEventListener("hashchange", unfold);
addEventListener("click", (event) => {
  // the address may be there already, and then no hashchange comes
  const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  const link = event.target.closest("a");
  if (isPlain && link && link.hash === location.hash && unfold()) event.preventDefault();
});
unfold();
