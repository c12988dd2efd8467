export interface Picture {
  id: string;
  name: string;
  /** As it is sent: upright and shrunk, or the file itself where the browser can't read it. */
  blob: Blob;
  /** Of the blob when the browser can show it, else 0. */
  width: number;
  height: number;
  /** Of the file. */
  fromWidth: number;
  fromHeight: number;
  fromBytes: number;
  format: string;
  /** The cap it was shrunk to. */
  cap: number;
  /** The server's name for it, as long as the server knows it. */
  file?: string;
}

export type Stage =
  | "prepare" // shrinking in the browser
  | "send" // uploading
  | "connect" // asked, nothing heard yet
  | "busy" // the server is full; tried again soon
  | "queue"
  | "decode"
  | "vision"
  | "prefill"
  | "answer";

export interface Progress {
  stage: Stage;
  step?: number;
  of?: number;
  position?: number;
  /** Milliseconds until it begins, as the server guesses. */
  estimate?: number;
  /** Prompt tokens that need not be read again. */
  cached?: number;
  total?: number;
}

export interface ImageReport {
  format: string;
  width: number;
  height: number;
  turned: boolean;
  frames: number;
  resized: { width: number; height: number };
  tokens: number;
  cells: number;
  kept: number;
  cache: string;
  decode_ms: number;
  vision_ms: number;
}

export interface Timings {
  cache_n: number;
  prompt_n: number;
  predicted_n: number;
  predicted_per_second: number;
  predicted_ms: number;
  queue_ms: number;
  vision_ms: number;
  first_token_ms: number;
  total_ms: number;
}

export interface Report {
  finish?: string;
  detail?: string;
  timings?: Timings;
  images?: ImageReport[];
  warnings?: string[];
  cache?: string;
  model?: string;
  varied?: boolean;
}

/** Why there is no (whole) answer; `code` has a sentence in the dictionaries. */
export interface Trouble {
  code: string;
  /** The server's own words. */
  text?: string;
}

export interface Message {
  id: string;
  role: "user" | "assistant";
  text: string;
  at: number;
  pictures: string[];
  state: "done" | "running" | "stopped" | "failed";
  trouble?: Trouble;
  report?: Report;
}

export interface Talk {
  id: string;
  title: string;
  created: number;
  updated: number;
  messages: Message[];
}

export interface Settings {
  temperature: number;
  maxTokens: number;
  detail: "auto" | "low" | "high";
  prune: "off" | "exact" | "near=8";
  system: string;
  transport: "auto" | "sse" | "ws";
  theme: "system" | "light" | "dark";
  language: "auto" | "en" | "zh";
}

export const DEFAULTS: Settings = {
  temperature: 0,
  maxTokens: 512,
  detail: "auto",
  prune: "off",
  system: "",
  transport: "auto",
  theme: "system",
  language: "auto",
};

export interface Props {
  model_alias: string;
  build_info: string;
  weights: string;
  tier: string;
  threads: number;
  total_slots: number;
  max_body_bytes: number;
  default_generation_settings: { n_ctx: number };
  images: {
    formats: string[];
    max_count: number;
    max_bytes: number;
    max_tokens: number;
    transfer_side?: number;
    transfer_side_high?: number;
  };
}
