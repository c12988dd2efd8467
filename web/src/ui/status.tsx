import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { request } from "../lib/api";
import { readMetrics } from "../lib/prometheus";
import { runs, state, t, whenRunning } from "../state";
import { Dialog } from "./dialogs";

interface Sample {
  at: number;
  running: number;
  waiting: number;
  speed: number | null;
  first: number | null;
}
const EVERY = 2000;
const KEPT = 300;

/** Outlives the dialog, so that what was measured before is still there. */
const history: Sample[] = [];
let last: { at: number; tokens: number; ttft: number; ttftN: number } | null = null;

interface Now {
  metrics: Map<string, number> | null;
  busy: number;
  slots: number;
}

async function poll(): Promise<Now> {
  const slots = await request("slots").then((r) => r.json() as Promise<{ is_processing: boolean }[]>).catch(() => []);
  const metrics = await request("metrics").then(async (r) => readMetrics(await r.text())).catch(() => null);
  if (metrics) {
    const at = Date.now();
    const get = (k: string) => metrics.get(k) ?? 0;
    const now = { at, tokens: get("generated_tokens_total"), ttft: get("time_to_first_token_seconds_sum"), ttftN: get("time_to_first_token_seconds_count") };
    const gap = last && now.tokens >= last.tokens ? (at - last.at) / 1000 : 0;
    const n = last ? now.ttftN - last.ttftN : 0;
    if (gap < 30)
      history.push({
        at,
        running: get("requests_running"),
        waiting: get("requests_waiting"),
        speed: gap > 0 ? (now.tokens - last!.tokens) / gap : null,
        first: gap > 0 && n > 0 ? (now.ttft - last!.ttft) / n : null,
      });
    if (history.length > KEPT) history.shift();
    last = now;
  }
  return { metrics, busy: slots.filter((s) => s.is_processing).length, slots: slots.length };
}

/** Measured also while this page has answers coming, so that the plots have something to show. */
let open = false;
let sampling = false;
whenRunning.push(async () => {
  if (sampling || open) return;
  sampling = true;
  await poll();
  while (runs.size && !open) {
    await new Promise((r) => setTimeout(r, EVERY));
    if (!document.hidden && !open) await poll();
  }
  sampling = false;
});

function Plot({ title, series, unit }: { title: string; series: { name: string; values: (number | null)[] }[]; unit: (v: number) => string }): JSX.Element {
  const w = 300;
  const h = 72;
  const all = series.flatMap((s) => s.values.filter((v): v is number => v !== null));
  const top = Math.max(1e-9, ...all) * 1.15;
  const n = Math.max(30, series[0]?.values.length ?? 0);
  const x = (i: number, length: number) => w - (length - 1 - i) * (w / (n - 1));
  const y = (v: number) => h - 4 - (v / top) * (h - 10);
  const newest = series.map((s) => s.values.findLast((v) => v !== null) ?? null);
  const label = series.map((s, i) => `${s.name} ${newest[i] === null ? t("status.none") : unit(newest[i]!)}`).join(", ");
  return (
    <figure class="plot">
      <figcaption>
        <span>{title}</span>
        <span class="values">
          {series.map((s, i) => (
            <b key={s.name} class={`s${i}`}>{series.length > 1 ? `${s.name} ` : ""}{newest[i] === null ? t("status.none") : unit(newest[i]!)}</b>
          ))}
        </span>
      </figcaption>
      <svg viewBox={`0 0 ${w} ${h}`} preserveAspectRatio="none" role="img" aria-label={`${title}: ${label}`}>
        <path class="grid" d={`M0 ${h - 4}H${w}M0 ${y(top / 1.15)}H${w}`} />
        {series.map((s, k) => {
          const points = s.values.map((v, i) => (v === null ? null : ([x(i, s.values.length), y(v)] as const))).filter((p) => p !== null);
          if (!points.length) return null;
          const line = points.map(([px, py]) => `${px.toFixed(1)} ${py.toFixed(1)}`).join("L");
          return (
            <g key={s.name} class={`s${k}`}>
              {k === 0 && <path class="area" d={`M${points[0]![0].toFixed(1)} ${h - 4}L${line}L${points.at(-1)![0].toFixed(1)} ${h - 4}Z`} />}
              <path class="curve" d={`M${line}`} />
            </g>
          );
        })}
      </svg>
    </figure>
  );
}

function Share({ title, hits, queries }: { title: string; hits: number; queries: number }): JSX.Element {
  const share = queries ? hits / queries : 0;
  return (
    <div class="share">
      <span>{title}</span>
      <b>{queries ? `${Math.round(100 * share)} %` : t("status.none")}</b>
      <div class="meter" role="img" aria-label={t("status.of", { hits, queries })}><i style={{ transform: `scaleX(${share})` }} /></div>
      <small>{queries ? t("status.of", { hits, queries }) : " "}</small>
    </div>
  );
}

export function StatusDialog(): JSX.Element {
  const [now, setNow] = useState<Now | null>(null);
  useEffect(() => {
    let timer = 0;
    open = true;
    let gone = false;
    const go = async () => {
      const next = await poll();
      if (gone) return;
      setNow(next);
      timer = window.setTimeout(go, EVERY);
    };
    void go();
    return () => {
      gone = true;
      open = false;
      clearTimeout(timer);
    };
  }, []);
  const p = state.props;
  const m = now?.metrics;
  const get = (k: string) => m?.get(k) ?? 0;
  const minutes = Math.max(1, Math.round((Date.now() - (history[0]?.at ?? Date.now())) / 60000));
  return (
    <Dialog name="status" title={t("status.title")}>
      {p && (
        <dl class="facts">
          <dt>{t("status.model")}</dt>
          <dd>{p.model_alias} <span class="dim">{p.weights}</span></dd>
          <dt>{t("status.server")}</dt>
          <dd>margay {p.build_info}, {t("status.threads", { n: p.threads, tier: p.tier })}</dd>
          <dt>{t("status.places")}</dt>
          <dd>
            {now ? t("status.busy", { busy: now.busy, total: now.slots || p.total_slots }) : "…"}
            {m && `, ${get("requests_waiting")} ${t("status.waiting")}`}
            <span class="dim"> · {t("status.context", { n: p.default_generation_settings.n_ctx.toLocaleString("en") })}</span>
          </dd>
          {m && get("process_resident_memory_bytes") > 0 && (
            <>
              <dt>{t("status.memory")}</dt>
              <dd>{Math.round(get("process_resident_memory_bytes") / 1e6)} MB</dd>
            </>
          )}
        </dl>
      )}
      {now && !m && <p class="dim">{t("status.no_metrics")}</p>}
      {m && (
        <>
          <div class="shares">
            <Share title={t("status.pictures")} hits={get("image_cache_hits_total")} queries={get("image_cache_queries_total")} />
            <Share title={t("status.prompts")} hits={get("prompt_cache_hits_tokens_total")} queries={get("prompt_cache_queries_tokens_total")} />
          </div>
          <div class="plots">
            <Plot title={t("status.speed")} series={[{ name: t("status.speed"), values: history.map((s) => s.speed) }]} unit={(v) => v.toFixed(v < 10 ? 1 : 0)} />
            <Plot title={t("status.queue")} series={[{ name: t("status.running"), values: history.map((s) => s.running) }, { name: t("status.waiting"), values: history.map((s) => s.waiting) }]} unit={(v) => v.toFixed(0)} />
            <Plot title={t("status.first")} series={[{ name: t("status.first"), values: history.map((s) => s.first) }]} unit={(v) => (v < 1 ? v.toFixed(3) : v.toFixed(1))} />
          </div>
          <p class="dim right">{t("status.last", { minutes })}</p>
        </>
      )}
    </Dialog>
  );
}
