/** What the wait is for. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Progress, Stage } from "../lib/types";
import { type Run, t } from "../state";
import { Eyes } from "./cat";

const STEPS: { name: "stage.send" | "stage.vision" | "stage.prefill" | "stage.answer"; stages: Stage[] }[] = [
  { name: "stage.send", stages: ["prepare", "send", "connect", "busy", "queue", "decode"] },
  { name: "stage.vision", stages: ["vision"] },
  { name: "stage.prefill", stages: ["prefill"] },
  { name: "stage.answer", stages: ["answer"] },
];

export function words(p: Progress): string {
  const seconds = p.estimate !== undefined ? Math.max(1, Math.round(p.estimate / 1000)) : 0;
  if (p.stage === "queue" && seconds && p.position) return t("stage.queue_time", { position: p.position, seconds });
  return t(`stage.${p.stage}`, { position: p.position ?? 1, seconds: p.step ?? 1 });
}

export function StageLine({ run, pictures }: { run: Run; pictures: boolean }): JSX.Element {
  const { live } = run;
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const p = live.progress;
  const now = STEPS.findIndex((s) => s.stages.includes(p.stage));
  const seconds = Math.floor((performance.now() - live.began) / 1000);
  const reused = pictures && now >= 2 && !live.looked;
  const share = p.of && p.step !== undefined && p.stage !== "busy" ? p.step / p.of : null;
  const steps = pictures ? STEPS : STEPS.filter((s) => s.name !== "stage.vision");
  return (
    <div class={`stage at-${p.stage}`} data-stage={p.stage} data-looked={String(live.looked)}>
      <Eyes doing={p.stage} />
      <div class="stage-text">
        <span>{words(p)}</span>
        {p.stage === "vision" && p.of ? <span class="dim"> {Math.round((100 * (p.step ?? 0)) / p.of)} %</span> : null}
        {p.stage === "answer" && live.speed > 0 && <span class="dim"> {t("stage.speed", { speed: live.speed.toFixed(live.speed < 10 ? 1 : 0) })}</span>}
        {reused && <span class="known">{t("stage.known")}</span>}
        {seconds >= 2 && <span class="dim time"> {seconds} s</span>}
        <div class="steps" aria-hidden="true">
          {steps.map((s) => {
            const i = STEPS.indexOf(s);
            const done = i < now;
            const skipped = s.name === "stage.vision" && reused;
            const fill = done ? 1 : i === now ? (share ?? (p.stage === "answer" ? 1 : 0.35)) : 0;
            return (
              <i key={s.name} class={`${skipped ? "skipped" : done ? "done" : i === now ? "now" : ""} ${i === now && share === null ? "free" : ""}`}>
                <b style={{ transform: `scaleX(${fill})` }} />
              </i>
            );
          })}
        </div>
      </div>
    </div>
  );
}
