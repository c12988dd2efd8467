import type { JSX } from "preact";

const paths = {
  menu: "M4 7h16M4 12h16M4 17h10",
  plus: "M12 5v14M5 12h14",
  gear: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  pulse: "M3 12h4l3-7 4 14 3-7h4",
  picture: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.5h.01",
  camera: "M4 8h3.5L9 5.5h6L16.5 8H20v11H4zM12 10.2a3.2 3.2 0 1 0 0 6.4 3.2 3.2 0 0 0 0-6.4z",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15V4h11",
  again: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  pen: "M5 19l1-4L16 5l3 3L9 18zM14 7l3 3",
  close: "M6 6l12 12M18 6L6 18",
  bin: "M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12M10.5 11v5M13.5 11v5",
  down: "M12 4v11M7 11l5 5 5-5M5 20h14",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v1.5M12 19.5V21M3 12h1.5M19.5 12H21M5.6 5.6l1.1 1.1M17.3 17.3l1.1 1.1M5.6 18.4l1.1-1.1M17.3 6.7l1.1-1.1",
  moon: "M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z",
  box: "M4 8V4h4M16 4h4v4M20 16v4h-4M8 20H4v-4",
  turn: "M4 12a8 8 0 0 1 13.7-5.6L20 9M20 4v5h-5M20 12a8 8 0 0 1-13.7 5.6L4 15M4 20v-5h5",
  text: "M5 6h14M5 12h14M5 18h9",
  table: "M4 5h16v14H4zM4 10h16M10 10v9",
  braces: "M9 5c-3 0-1 6-4 7 3 1 1 7 4 7M15 5c3 0 1 6 4 7-3 1-1 7-4 7",
  eye: "M2.5 12S6 6 12 6s9.5 6 9.5 6-3.5 6-9.5 6-9.5-6-9.5-6zM12 9.3a2.7 2.7 0 1 0 0 5.4 2.7 2.7 0 0 0 0-5.4z",
} as const;

export type IconName = keyof typeof paths;

export function Icon({ name }: { name: IconName }): JSX.Element {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={paths[name]} />
    </svg>
  );
}
