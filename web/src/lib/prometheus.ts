/** The samples of a /metrics page by name, the labels' values behind it: `slots{state="busy"}` is "slots busy". */
export function readMetrics(text: string): Map<string, number> {
  const out = new Map<string, number>();
  for (const line of text.split("\n")) {
    const m = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!m) continue;
    const labels = [...(m[2] ?? "").matchAll(/\w+="((?:[^"\\]|\\.)*)"/g)].map((l) => l[1]);
    const value = m[3] === "+Inf" ? Infinity : Number(m[3]);
    out.set([m[1]!.replace(/^margay_/, ""), ...labels].join(" "), value);
  }
  return out;
}

/** Sum of a metric over its labels. */
export function total(metrics: Map<string, number>, name: string): number {
  let sum = 0;
  for (const [key, value] of metrics) if (key === name || key.startsWith(name + " ")) sum += value;
  return sum;
}
