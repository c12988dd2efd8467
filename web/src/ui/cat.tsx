import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

/** The margay: a small cat with very large eyes. They follow the pointer, and widen when a picture comes near. */
export function Cat({ wide = false, follow = false }: { wide?: boolean; follow?: boolean }): JSX.Element {
  const ref = useRef<SVGSVGElement>(null);
  useEffect(() => {
    if (!follow || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const move = (e: PointerEvent | DragEvent) => {
      const svg = ref.current;
      if (!svg) return;
      const r = svg.getBoundingClientRect();
      const dx = e.clientX - (r.left + r.width / 2);
      const dy = e.clientY - (r.top + r.height * 0.56);
      const far = Math.hypot(dx, dy) || 1;
      const reach = Math.min(1, far / 220);
      svg.style.setProperty("--look-x", `${((dx / far) * reach * 4.5).toFixed(2)}px`);
      svg.style.setProperty("--look-y", `${((dy / far) * reach * 4).toFixed(2)}px`);
    };
    addEventListener("pointermove", move);
    addEventListener("dragover", move);
    return () => {
      removeEventListener("pointermove", move);
      removeEventListener("dragover", move);
    };
  }, [follow]);
  return (
    <svg ref={ref} class={`cat ${wide ? "wide" : ""}`} viewBox="0 0 120 100" aria-hidden="true" focusable="false">
      <path class="fur" d="M20 50C17 34 18 18 21 9c1-4 5-5 8-2 7 6 13 11 18 15 8-2 18-2 26 0 5-4 11-9 18-15 3-3 7-2 8 2 3 9 4 25 1 41 4 10 1 22-8 30-10 9-21 12-32 12s-22-3-32-12c-9-8-12-20-8-30z" />
      <path class="ear" d="M27 33c-1-7-1-12 1-17 5 4 9 7 12 10-6 1-10 4-13 7zM93 33c1-7 1-12-1-17-5 4-9 7-12 10 6 1 10 4 13 7z" />
      <path class="mark" d="M60 24v9M52.5 26l1.5 8M67.5 26L66 34M24 62c3-1 5 0 6 2M96 62c-3-1-5 0-6 2M25 70c3-1 5-1 7 1M95 70c-3-1-5-1-7 1" />
      <ellipse class="muzzle" cx="60" cy="79" rx="17" ry="10.5" />
      {[40, 80].map((x) => (
        <g key={x}>
          <circle class="lid" cx={x} cy="56" r="18" />
          <circle class="iris" cx={x} cy="56" r="15.5" />
          <g class="gaze">
            <circle class="pupil" cx={x} cy="56" r="8.6" />
            <circle class="glint" cx={x - 3.2} cy="52" r="2.6" />
          </g>
        </g>
      ))}
      <path class="nose" d="M55.5 73.5h9c1 0 1.4 1 .8 1.7l-3.9 4.3c-.8.8-2 .8-2.8 0l-3.9-4.3c-.6-.7-.2-1.7.8-1.7z" />
      <path class="mouth" d="M60 80v3.5M60 83.5c-2 3-6 3-8 1M60 83.5c2 3 6 3 8 1" />
    </svg>
  );
}

/** Only the eyes, at work: they scan while looking, go along lines while reading. */
export function Eyes({ doing }: { doing: string }): JSX.Element {
  return (
    <svg class={`eyes ${doing}`} viewBox="0 0 48 24" aria-hidden="true" focusable="false">
      {[12, 36].map((x) => (
        <g key={x} class="eye">
          <circle class="iris" cx={x} cy="12" r="10.5" />
          <circle class="pupil" cx={x} cy="12" r="5.6" />
          <circle class="glint" cx={x - 2.2} cy="9.6" r="1.7" />
        </g>
      ))}
    </svg>
  );
}
