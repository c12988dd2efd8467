export interface Size {
  width: number;
  height: number;
}

/** The size in which no side is longer than `cap`, in the same proportions; never enlarged, never below one pixel. */
export function fit(size: Size, cap: number): Size {
  const longest = Math.max(size.width, size.height);
  if (longest <= cap) return { width: size.width, height: size.height };
  const scale = cap / longest;
  return {
    width: Math.max(1, Math.round(size.width * scale)),
    height: Math.max(1, Math.round(size.height * scale)),
  };
}

/** Sizes to go through when shrinking: halves while more than twice too large, then the target. */
export function steps(from: Size, to: Size): Size[] {
  const out: Size[] = [];
  let { width, height } = from;
  while (width > to.width * 2 && height > to.height * 2) {
    width = Math.max(to.width, Math.ceil(width / 2));
    height = Math.max(to.height, Math.ceil(height / 2));
    out.push({ width, height });
  }
  const last = out.at(-1);
  if (!last || last.width !== to.width || last.height !== to.height) out.push(to);
  return out;
}
