#!/usr/bin/env python3
"""Has a real Prometheus scrape ramjet, and checks what `deploy/` gives it: rules, dashboard, and the format of the page.

    tests/prometheus/run.py [--ramjet target/debug/ramjet]

Needs `prometheus` and `promtool` on the PATH (Debian: apt-get install prometheus); without them it says so and is skipped.
The server runs on a port of its own, with its data in a folder that goes when the test ends.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DEPLOY = ROOT / "deploy"
sys.path += [str(HERE.parent / "page"), str(HERE.parent / "e2e")]

import fleet
import procs
import scene
import tally

RULES = DEPLOY / "prometheus-rules.yaml"


def promtool(*args, text=None):
    """(passed, what it said)."""
    done = subprocess.run(["promtool", *map(str, args)], input=text, capture_output=True, text=True, timeout=120)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def static_checks():
    for name, args in [
        ("rules", ["check", "rules", RULES]),
        ("the example configuration", ["check", "config", DEPLOY / "prometheus.yaml"]),
        ("what fires when", ["test", "rules", HERE / "rules_test.yaml"]),
    ]:
        yield f"promtool passes {name}", *promtool(*args)


def configuration(admin, logs):
    """The example, aimed at this router and in a hurry."""
    text = (DEPLOY / "prometheus.yaml").read_text()
    text = text.replace("127.0.0.1:9090", admin.removeprefix("http://")).replace("15s", "1s")
    path = logs / "prometheus.yaml"
    path.write_text(text.replace("prometheus-rules.yaml", str(RULES)))
    return path


class Prometheus:
    def __init__(self, admin, logs):
        (port,) = procs.lease_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        flags = [f"--config.file={configuration(admin, logs)}", f"--storage.tsdb.path={logs / 'tsdb'}"]
        flags += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        self.process = procs.Process(["prometheus", *flags], logs / "prometheus.log")

    def ask(self, path, **query):
        status, text = fleet.get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}")
        return json.loads(text).get("data") if status == 200 else None

    def value(self, query):
        """The sum of an instant query's values; None if there is none, or it is no query."""
        data = self.ask("query", query=query)
        return sum(float(each["value"][1]) for each in data["result"]) if data and data["result"] else None


def queries():
    """All of the dashboard, its variables filled in."""
    text = (DEPLOY / "grafana.json").read_text()
    found = [json.loads(f'"{query}"') for query in re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', text)]
    return [query.replace("$__rate_interval", "1m").replace("$instance", ".*") for query in found]


def live_checks(stage, server):
    up = fleet.wait(lambda: server.value('up{job="ramjet"}') == 1, 60, 0.5)
    yield "Prometheus scrapes it", up, server.process.tail(5)
    samples = server.value('scrape_samples_scraped{job="ramjet"}') or 0
    yield "the scrape is whole", samples > 500, f"{samples} samples"
    asked = fleet.wait(lambda: (server.value("sum(rate(ramjet_requests_total[1m]))") or 0) > 0, 60, 0.5)
    yield "requests are counted there", asked, ""
    broken = [query for query in queries() if server.ask("query", query=query) is None]
    yield "every query of the dashboard is one", not broken, broken
    # these show nothing as long as nothing goes wrong
    quiet = ("> 0", "== 1")
    empty = [q for q in queries() if server.value(q) is None and not any(word in q for word in quiet)]
    yield "every query of the dashboard finds something", not empty, empty
    groups = server.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    ill = [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] == "err"]
    yield f"all {len(rules)} rules are evaluated", len(rules) > 15 and not ill, ill

    def shares():
        return [server.value(f"ramjet:{name}_share:15m") for name in ("predicted", "cached")]

    # the first prompts, which nobody holds, weigh less and less
    agree = fleet.wait(lambda: None not in (both := shares()) and min(both) > 0.5 and abs(both[0] - both[1]) < 0.2, 90, 0.5)
    yield "what is believed to be cached is what engines report", agree, shares()

    def alerts():
        return {alert["labels"]["alertname"] for alert in server.ask("alerts")["alerts"]}

    # rules are evaluated one after the other: what the first prompts have raised goes with the next round
    yield "nothing is alerted while all is well", fleet.wait(lambda: not alerts(), 30, 0.5), alerts()
    gone = next(iter(stage.ports))
    stage.stop_engine(gone)

    def fenced():
        found = server.ask("alerts")["alerts"]
        return any(a["labels"].get("upstream") == gone and a["labels"]["alertname"] == "RamjetReplicaFenced" for a in found)

    yield "a fenced replica is pending as an alert", fleet.wait(fenced, 60, 0.5), server.ask("alerts")


def all_checks(ramjet, logs):
    yield from static_checks()
    with scene.Stage(ramjet, logs, "m1", ["gpu-a", "gpu-b"], truthful=True) as stage, stage.load():
        fleet.wait(lambda: fleet.metrics(stage.admin)["ramjet_ttft_seconds_count", ""] > 3, 30)
        status, page = fleet.get(f"{stage.admin}/metrics")
        yield "promtool passes the metrics page", *promtool("check", "metrics", text=page)
        server = Prometheus(stage.admin, logs)
        with server.process:
            yield from live_checks(stage, server)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ramjet", type=pathlib.Path, default=ROOT / "target/debug/ramjet", help="the binary to test")
    args = parser.parse_args()
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        print("SKIPPED: prometheus and promtool are not installed (Debian: apt-get install prometheus)")
        return 0
    procs.exit_on_signals()
    return tally.run("prometheus", lambda logs: all_checks(args.ramjet.resolve(), logs))


if __name__ == "__main__":
    sys.exit(main())
