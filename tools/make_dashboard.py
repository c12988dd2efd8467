#!/usr/bin/env python3
"""Writes deploy/grafana/margay.json, the Grafana dashboard: make_dashboard.py > deploy/grafana/margay.json

Each panel is a title, a unit, and pairs of query and legend. tests/serve/test_operations.py holds the queries against
what a running server exports.
"""
import json

SEL = 'job=~"$job",instance=~"$instance"'


def rate(metric, more="", by=""):
    labels = SEL + ("," + more if more else "")
    return f"sum{' by (' + by + ')' if by else ''} (rate({metric}{{{labels}}}[$__rate_interval]))"


def quantiles(metric):
    return [(f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket{{{SEL}}}[$__rate_interval])))", name)
            for q, name in ((0.5, "half"), (0.95, "95 %"), (0.99, "99 %"))]


def mean(metric):
    return f"{rate(metric + '_sum')} / {rate(metric + '_count')}"


def ratio(hits, queries):
    return f"{rate(hits)} / {rate(queries)}"


def gauge(metric, by=""):
    return f"sum{' by (' + by + ')' if by else ''} ({metric}{{{SEL}}})"


def most(metric, by=""):
    return f"max{f' by ({by})' if by else ''} ({metric}{{{SEL}}})"


def most_rate(metric, by=""):
    return f"max{f' by ({by})' if by else ''} (rate({metric}{{{SEL}}}[$__rate_interval]))"


ROWS = [
    ("People", [
        ("Answers by how they end", "reqps", [(rate("margay_requests_total", by="finish_reason"), "{{finish_reason}}")]),
        ("HTTP requests by status", "reqps", [(rate("margay_http_requests_total", by="code"), "{{code}}")]),
        ("Running and waiting", "none", [(gauge("margay_requests_running"), "running"), (gauge("margay_requests_waiting"), "waiting")]),
        ("Errors by type", "reqps", [(rate("margay_request_errors_total", by="type"), "{{type}}")]),
        ("Given up, by phase", "reqps", [(rate("margay_requests_cancelled_total", by="phase"), "{{phase}}")]),
        ("Open connections", "none", [(gauge("margay_http_connections"), "connections")]),
    ]),
    ("How long they wait", [
        ("First token", "s", quantiles("margay_time_to_first_token_seconds")),
        ("Each further token", "s", quantiles("margay_time_per_output_token_seconds")),
        ("In the queue", "s", quantiles("margay_queue_time_seconds")),
        ("Whole answer", "s", quantiles("margay_request_duration_seconds")),
        ("Mean of each phase", "s", [(mean(f"margay_{m}_seconds"), name) for m, name in (
            ("image_decode", "decode the picture"), ("vision_encode", "look"), ("prefill", "read the question"), ("decode", "answer"))]),
    ]),
    ("What is computed", [
        ("Tokens a second", "none", [(rate("margay_prompt_tokens_total", by="source"), "prompt, {{source}}"),
                                     (rate("margay_generated_tokens_total"), "answer"), (rate("margay_image_tokens_total"), "of pictures")]),
        ("Pictures by format and outcome", "reqps", [(rate("margay_images_total", by="format,outcome"), "{{format}} {{outcome}}")]),
        ("Drafts that were right", "percentunit", [(ratio("margay_accepted_tokens_total", "margay_drafted_tokens_total"), "accepted")]),
        ("Size of requests, mean", "none", [(mean(f"margay_request_{m}_tokens"), name) for m, name in (
            ("prompt", "prompt"), ("image", "pictures"), ("generated", "answer"))]),
    ]),
    ("Caches", [
        ("Found in the cache", "percentunit", [(ratio("margay_image_cache_hits_total", "margay_image_cache_queries_total"), "pictures"),
                                               (ratio("margay_prompt_cache_hits_tokens_total", "margay_prompt_cache_queries_tokens_total"), "prompt tokens"),
                                               (ratio("margay_answer_cache_hits_total", "margay_answer_cache_queries_total"), "answers")]),
        ("Answers kept, by kind of hit", "reqps", [(rate("margay_answer_cache_hits_total", by="kind"), "{{kind}}")]),
        ("Keys and values in use", "percentunit", [(f"max by (instance) (margay_kv_cache_usage_ratio{{{SEL}}})", "{{instance}}")]),
        ("What the caches hold", "percentunit", [(f"sum by (cache) (margay_cache_bytes{{{SEL}}}) / sum by (cache) (margay_cache_limit_bytes{{{SEL}}})", "{{cache}}")]),
        ("Places", "none", [(gauge("margay_slots", "state"), "{{state}}")]),
    ]),
    ("Shared cache in Redis", [
        ("Redis answers", "none", [(f"margay_redis_up{{{SEL}}}", "{{instance}}")]),
        ("Found in Redis", "percentunit", [(f"{rate('margay_shared_cache_hits_total', by='kind')} / {rate('margay_shared_cache_queries_total', by='kind')}", "{{kind}}")]),
        ("Put into Redis", "reqps", [(rate("margay_shared_cache_stored_total", by="kind"), "{{kind}}")]),
        ("How long reads and puts take", "s", [(f"histogram_quantile(0.99, sum by (le) (rate(margay_shared_cache_{m}_seconds_bucket{{{SEL}}}[$__rate_interval])))", f"{m}, 99 %") for m in ("read", "write")]),
        ("Went wrong, not tried", "reqps", [(rate("margay_shared_cache_errors_total", by="reason"), "{{reason}}"),
                                            (rate("margay_shared_cache_dropped_total", by="what"), "{{what}} not tried")]),
        ("Bytes", "Bps", [(rate("margay_shared_cache_bytes_total", by="direction"), "{{direction}}")]),
    ]),
    # Each gateway tells of the whole queue: the largest number is the newest, their sum would be nonsense.
    ("Job queue", [
        ("Jobs", "none", [(most("margay_queue_jobs", "state"), "{{state}}"), (most("margay_queue_slots"), "slots")]),
        ("Workers", "none", [(most("margay_queue_workers"), "workers")]),
        ("Jobs by how they end", "reqps", [(most_rate("margay_queue_ended_total", "state"), "{{state}}"),
                                           (most_rate("margay_queue_submitted_total"), "handed in"), (most_rate("margay_queue_refused_total"), "refused")]),
        ("Workers lost, jobs given back", "reqps", [(most_rate("margay_queue_takeovers_total"), "leases that ran out"),
                                                    (most_rate("margay_queue_returned_total"), "given back")]),
        ("Until a job is taken", "s", quantiles("margay_queue_wait_seconds")),
        ("Bytes of open jobs", "bytes", [(most("margay_queue_bytes"), "bytes")]),
        ("Jobs of each worker", "reqps", [(rate(f"margay_jobs_{m}_total"), m) for m in ("taken", "lost", "returned")]),
    ]),
    ("Machine", [
        ("Processors in use", "none", [(f"rate(process_cpu_seconds_total{{{SEL}}}[$__rate_interval])", "{{instance}}")]),
        ("Resident memory", "bytes", [(f"process_resident_memory_bytes{{{SEL}}}", "{{instance}}")]),
        ("Open files", "percentunit", [(f"process_open_fds{{{SEL}}} / process_max_fds{{{SEL}}}", "{{instance}}")]),
        ("Up since", "s", [(f"time() - process_start_time_seconds{{{SEL}}}", "{{instance}}")]),
        ("Ready", "none", [(f"margay_model_loaded{{{SEL}}}", "{{instance}}")]),
        ("Model", "none", [(f"margay_model_info{{{SEL}}}", "{{model}} {{quant}} {{isa}} {{threads}} threads, {{version}}")]),
    ]),
]


def panels():
    n, y = 0, 0
    source = {"type": "prometheus", "uid": "${source}"}
    for title, row in ROWS:
        n += 1
        yield {"id": n, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}}
        y += 1
        for i, (name, unit, queries) in enumerate(row):
            n += 1
            yield {"id": n, "type": "timeseries", "title": name, "datasource": source,
                   "gridPos": {"h": 8, "w": 8, "x": i % 3 * 8, "y": y + i // 3 * 8},
                   "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                   "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
                   "targets": [{"refId": chr(65 + k), "datasource": source, "expr": q, "legendFormat": legend}
                               for k, (q, legend) in enumerate(queries)]}
        y += (len(row) + 2) // 3 * 8


def variable(name, label, **more):
    return {"name": name, "label": label, "hide": 0, **more}


def values_of(label):
    return {"type": "query", "datasource": {"type": "prometheus", "uid": "${source}"}, "multi": True, "includeAll": True, "refresh": 2,
            "query": {"query": f"label_values(margay_model_info, {label})", "refId": "v"}, "current": {"text": "All", "value": "$__all"}}


print(json.dumps({
    "title": "margay", "uid": "margay", "tags": ["margay"], "timezone": "browser", "schemaVersion": 39, "version": 1, "editable": True,
    "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "annotations": {"list": []},
    "templating": {"list": [variable("source", "Data source", type="datasource", query="prometheus"),
                            variable("job", "Job", **values_of("job")), variable("instance", "Server", **values_of("instance"))]},
    "panels": list(panels())}, indent=1))
