"""What is looked at in the browser. Started by run.py with where everything is; tells what it found, one line of JSON a check."""

import contextlib
import json
import pathlib
import sys
import traceback

from playwright.sync_api import expect, sync_playwright

VIEWS = {
    "overview": "Time to first token",
    "fleet": "Replicas",
    "decisions": "The last 50 decisions",
    "prefixes": "Trunks most shared",
    "linter": "What breaks prefixes",
    "settings": "Configuration in force",
}
SIZES = {"wide": 1440, "narrow": 390}
TOLD = json.loads(sys.argv[1])
expect.set_options(timeout=20_000)


def say(name, passed, figures=""):
    print(json.dumps({"check": name, "passed": bool(passed), "figures": str(figures)[:600]}), flush=True)


@contextlib.contextmanager
def check(name):
    try:
        yield
        say(name, True)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        say(name, False, f"{type(error).__name__}: {error} (line {at.lineno}: {at.line})")


def have(what, engine):
    """Has something happen on the stage."""
    print(json.dumps({"do": what, "engine": engine}), flush=True)
    sys.stdin.readline()


def same(found, wanted):
    if found != wanted:
        raise AssertionError(f"found {found!r}, wanted {wanted!r}")


class Browser:
    """A page, and what it complained of."""

    def __init__(self, browser, width, scheme):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, view):
        self.page.goto(f"{TOLD['admin']}/#{view}")
        return self.page

    def shot(self, name):
        if TOLD["shots"]:
            self.page.wait_for_timeout(1200)
            self.page.screenshot(path=pathlib.Path(TOLD["shots"], f"{name}.png"))

    def told(self):
        """Complaints, without those that a version brings that lacks a place of the API."""
        return [each for each in self.complaints if "404" not in each]


def overflow(page):
    """Pixels by which the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def contrast(page):
    """Texts whose contrast with their ground is below what WCAG AA asks of small text (4.5), as far as that is plain."""
    return page.evaluate(
        """() => {
      const light = c => {
        const [r, g, b] = c.match(/[\\d.]+/g).map(Number).slice(0, 3)
          .map(v => v / 255).map(v => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ground = e => {
        for (; e; e = e.parentElement) {
          const c = getComputedStyle(e).backgroundColor;
          if (!/rgba\\(.*, 0\\)|transparent/.test(c)) return c;
        }
        return "rgb(255, 255, 255)";
      };
      const bad = [];
      for (const e of document.querySelectorAll("body *")) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
        if (!own || e.closest("svg") || !e.checkVisibility()) continue;
        const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) bad.push(`${e.tagName}.${e.className} ${e.textContent.slice(0, 20)} ${ratio.toFixed(2)}`);
      }
      return bad;
    }"""
    )


def every_view(browser):
    for scheme in ("light", "dark"):
        for size, width in SIZES.items():
            own = Browser(browser, width, scheme)
            for view, title in VIEWS.items():
                with check(f"{view}, {scheme}, {size}: opens, fits, can be read"):
                    page = own.open(view)
                    expect(page.get_by_role("heading", name=title, exact=False).first).to_be_visible()
                    expect(page.locator("#link")).to_have_text("● live")
                    expect(page.locator("nav a[aria-current=page]")).to_have_attribute("href", f"#{view}")
                    own.shot(f"{view}-{size}-{scheme}")
                    same(overflow(page), 0)
                    same(contrast(page), [])
            with check(f"{scheme}, {size}: nothing is complained of"):
                same(own.told(), [])
            own.context.close()


def decisions(browser):
    for size, width in SIZES.items():
        own = Browser(browser, width, "light")
        page = own.open("decisions")
        with check(f"decisions, {size}: a click tells why"):
            expect(page.locator("td button.name").nth(8)).to_be_visible()
            page.get_by_role("button", name="Pause").click()
            page.locator("td button.name").nth(3).click()
            expect(page.get_by_role("button", name="Paused")).to_be_visible()
            why = page.locator(".why")
            expect(why).to_contain_text("cost chose")
            panel = page.get_by_role("region", name="Why")
            expect(panel.get_by_role("columnheader", name="prefill")).to_be_visible()
            expect(panel.get_by_text("What came of it")).to_be_visible()
            rows = [row.locator("td").all_inner_texts() for row in panel.locator("table").first.locator("tbody tr").all()]
            rows = [[float(each.replace(",", "").replace(" k", "e3")) for each in row[2:10]] for row in rows]
            for total, *terms in rows:
                if abs(total - sum(terms)) > max(1.0, 0.02 * total):
                    raise AssertionError(f"{terms} do not make {total}")
            # what is said of their order is what they show; figures that look alike may be either
            first, best = rows[0][0], min(total for total, *_ in rows)
            says = panel.locator(".note").first.inner_text()
            is_order, is_near = "cheapest goes first" in says, abs(first - best) <= 0.01 * best
            if is_order == ("outweighs" in says) or is_order != (first == best) and not is_near:
                raise AssertionError(f"{says} of {rows}")
            own.shot(f"why-{size}")
            same(overflow(page), 0)
        with check(f"decisions, {size}: Esc closes it, and the address names what is open"):
            if "#decisions/" not in page.url:
                raise AssertionError(page.url)
            opened = page.url.rsplit("/", 1)[-1]
            page.keyboard.press("Escape")
            expect(page.locator(".why")).to_have_count(0)
            same(page.evaluate("document.activeElement.textContent"), opened)
        with check(f"decisions, {size}: a filter keeps what matches"):
            replica = page.locator("tbody tr").first.locator("td").nth(2).inner_text().split()[-1]
            page.keyboard.press("/")
            page.keyboard.type(replica)
            expect(page.locator("tbody tr").first).to_contain_text(replica)
            page.wait_for_timeout(1500)
            rows = page.locator("tbody tr").all_inner_texts()
            if not rows or not all(replica in row for row in rows):
                raise AssertionError(rows)
            page.locator("td button.name").first.click()
            expect(page.locator(".why")).to_be_visible()
            expect(page.locator("input[type=search]")).to_have_value(replica)
            page.locator("input[type=search]").focus()
            page.keyboard.press("End")
            page.keyboard.type(" and no other")
            expect(page.get_by_text("None of the last 50 decisions matches.")).to_be_visible()
        own.context.close()


def hostile_names(browser):
    own = Browser(browser, SIZES["wide"], "light")
    with check("a model that is called like markup is shown as text"):
        page = own.open("decisions")
        expect(page.get_by_text(TOLD["model"], exact=False).first).to_be_visible()
        page.locator("td button.name").first.click()
        expect(page.locator("dd", has_text="model <img").first).to_be_visible()
        same(page.locator("img").count(), 0)
        same(page.evaluate("window.owned ?? null"), None)
    with check("so are replicas and models in the other views"):
        hostile = TOLD["model"]
        trunk = {"name": "a1", "blocks": 3, "bytes": 6144, "uses": 2, "sessions": 2, "last_used": 1764483921, "holders": [hostile]}
        prefixes = {"index_blocks": 1, "block_bytes": 2048, "index_bytes": 1, "trunks": [trunk]}
        prompts = {**PROMPTS, "models": [{**PROMPTS["models"][0], "model": hostile}]}
        page.route("**/api/prefixes", lambda route: route.fulfill(json=prefixes))
        page.route("**/api/prompts", lambda route: route.fulfill(json=prompts))
        for view in ("prefixes", "linter"):
            own.open(view)
            expect(page.get_by_text(hostile, exact=False).first).to_be_visible()
        own.open("fleet/" + page.evaluate("encodeURIComponent(arguments[0])".replace("arguments[0]", json.dumps(hostile))))
        expect(page.get_by_role("heading", name=hostile, exact=False)).to_be_visible()
        same(page.locator("img").count(), 0)
        same(page.evaluate("window.owned ?? null"), None)
    with check("an address that somebody made up shows a view all the same"):
        for address in ("%", "constructor", "__proto__", "toString/x", "decisions/%2e%2e", "nothing"):
            own.page.goto("about:blank")
            own.open(address)
            expect(page.locator("#link")).to_have_text("● live")
            expect(page.get_by_role("heading").nth(1)).to_be_visible()
            expect(page.locator("main .empty", has_text="Loading")).to_have_count(0)
        same(own.told(), [])
    own.context.close()


# a chart of six values, the last but one of which is read; then the oldest goes and one comes, and then all are others
READ = """async () => {
  const { chart } = await import("/page/chart.js");
  const one = chart({ title: "t", write: String, lines: [{ name: "n", title: "n", kind: "a" }] });
  document.body.append(one.element);
  const from = first => [...Array(6).keys()].map(n => first + n);
  const show = first => one.show({ at: from(first).map(n => 60 * n), values: { n: from(first) }, step_s: 60 }, 3600);
  const readout = () => one.element.querySelector(".readout").textContent.split(": ").pop();
  show(10);
  const press = () => one.element.querySelector("svg.plot").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
  press();
  press();
  const before = readout();
  show(11);
  const after = readout();
  show(100);
  const gone = readout();
  one.element.remove();
  return [`${before}, ${after}`, gone];
}"""
READ_TWICE = "n 14, n 14"


def keyboard(browser):
    own = Browser(browser, SIZES["wide"], "dark")
    page = own.open("overview")
    with check("keys 1 to 6 choose the views"):
        for number, view in enumerate(VIEWS, 1):
            page.keyboard.press(str(number))
            expect(page.locator("nav a[aria-current=page]")).to_have_attribute("href", f"#{view}")
    with check("the way past the navigation keeps the view, and a page that is opened there shows one"):
        page.locator("a.skip").focus()
        page.keyboard.press("Enter")
        expect(page.locator("nav a[aria-current=page]")).to_have_attribute("href", f"#{list(VIEWS)[-1]}")
        page.reload()
        expect(page.locator("nav a[aria-current=page]")).to_have_attribute("href", "#overview")
        expect(page.locator("svg.plot").first).to_be_visible()
    with check("all can be reached with the tab key, and the focus is seen"):
        own.open("fleet")
        expect(page.locator("td button.name").first).to_be_visible()
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.matches('td button.name')"):
                break
        same(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"), "solid")
        page.keyboard.press("Enter")
        expect(page.get_by_text("as clients see it", exact=False)).to_be_visible()
        own.shot("fleet-one")
    with check("a chart can be read by keys and as a table"):
        own.open("overview")
        chart = page.locator("svg.plot").first
        chart.focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".readout").first).to_contain_text("ended")
        page.locator("summary").first.click()
        expect(page.locator("figure table tbody tr").first).to_be_visible()
        own.shot("chart-as-table")
    with check("who reads a value of a chart goes on reading it while others come"):
        same(page.evaluate(READ), [READ_TWICE, ""])
    with check("the day is there beside the hour"):
        page.get_by_role("button", name="Last day").click()
        expect(page.get_by_role("button", name="Last day")).to_have_attribute("aria-pressed", "true")
    own.context.close()


def settings(browser):
    own = Browser(browser, SIZES["wide"], "light")
    with check("a configuration that could not be asked for is asked for again"):
        tried = []
        own.page.route("**/api/config", lambda route: tried.append(1) or (route.continue_() if tried[1:] else route.abort()))
        expect(own.open("settings").get_by_text("fleet.replicas[0]")).to_be_visible()
        same(len(tried), 2)
    with check("the configuration shows what differs, and all if asked"):
        page = own.open("settings")
        expect(page.get_by_text("fleet.replicas[0]")).to_be_visible()
        expect(page.get_by_text("routing.policy")).to_have_count(0)
        page.get_by_label("only what differs").uncheck()
        expect(page.get_by_text("routing.policy", exact=True)).to_be_visible()
    own.context.close()


def failures(browser):
    own = Browser(browser, SIZES["wide"], "light")
    page = own.open("fleet")
    with check("an engine that is killed is seen, with the reason"):
        expect(page.locator("tbody tr", has_text="gpu-a")).to_contain_text("healthy")
        have("stop", "gpu-a")
        row = page.locator("tbody tr", has_text="gpu-a")
        expect(row).to_contain_text("▲ fenced")
        expect(row).to_contain_text("connect")
        expect(page.locator("#facts")).to_contain_text("degraded, 2 of 3 healthy")
        own.shot("fleet-degraded")
    with check("and that it has come back"):
        have("start", "gpu-a")
        expect(page.locator("tbody tr", has_text="gpu-a")).to_contain_text("● healthy")
        expect(page.locator("#facts")).to_contain_text("3 of 3 healthy")
    with check("a router that does not answer any more is said"):
        have("freeze", "")
        expect(page.locator("#link")).to_contain_text("▲ connection lost")
        own.shot("lost")
        have("thaw", "")
        expect(page.locator("#link")).to_have_text("● live")
    with check("a place of the API that does not answer is said where it is missed"):
        page.route("**/api/prefixes", lambda route: route.abort())
        page.keyboard.press("4")
        expect(page.get_by_text("It cannot be asked")).to_be_visible()
        page.unroute("**/api/prefixes")
        expect(page.get_by_text("It cannot be asked")).to_have_count(0)
    own.context.close()


FOUND = {
    "client": "openai-python",
    "endpoint": "chat_completions",
    "field": "messages[0].content",
    "part": "system",
    "change": "clock",
    "offset": 71,
    "last_offset": 71,
    "length": 9120,
    "requests": 41,
    "tokens": 398000,
    "last": 1764483921.5,
}
UNCACHED = {"new": 200000, "routing": 50000, "evicted": 30000, "volatile": 20000}
SUMS = {"model": "m1", "requests": 120, "prompt_tokens": 1200000, "cached_tokens": 900000, "uncached": UNCACHED}
PROMPTS = {
    "models": [{**SUMS, "round_robin_cached_tokens": 490000, "saved_tokens": 410000}],
    "estimate": "made up",
    "linter": {"looked_at": 57, "passed_over": 0, "findings": [FOUND]},
}


def linter(browser):
    for size, width in SIZES.items():
        own = Browser(browser, width, "dark")
        own.page.route("**/api/prompts", lambda route: route.fulfill(json=PROMPTS))
        with check(f"linter, {size}: a finding says where, what, how often and what it costs"):
            page = own.open("linter")
            row = page.locator("tbody tr").first
            for part in ("messages[0].content", "at byte 71 of 9,120", "a date or a clock", "41", "398 k", "openai-python"):
                expect(row).to_contain_text(part)
            own.shot(f"linter-found-{size}")
            same(overflow(page), 0)
            same(contrast(page), [])
        with check(f"overview, {size}: the accounts add up to the whole"):
            page = own.open("overview")
            expect(page.locator("ul.parts li").first).to_be_visible()
            shares = [float(each.split(" %")[0]) for each in page.locator("ul.parts li").all_inner_texts()]
            if len(shares) != 5 or not 98 <= sum(shares) <= 102:
                raise AssertionError(shares)
        own.context.close()


def upgrade(browser):
    own = Browser(browser, SIZES["wide"], "light")
    with check("the page goes on with the process that follows, and the day is still there"):
        page = own.open("overview")
        expect(page.locator("#link")).to_have_text("● live")
        page.locator("summary").first.click()
        oldest = page.locator("figure").first.locator("tbody tr").last.locator("td").first
        expect(oldest).to_be_visible()
        first = oldest.inner_text()
        have("upgrade", "")
        page.wait_for_timeout(3000)
        expect(page.locator("#link")).to_have_text("● live")
        own.open("decisions")
        page.reload()
        expect(page.locator("td button.name").first).to_be_visible()
        own.open("overview")
        page.locator("summary").first.click()
        same(oldest.inner_text(), first)
    own.context.close()


def main():
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=TOLD["chromium"], args=["--no-sandbox"])
        warm = Browser(browser, SIZES["wide"], "light")
        page = warm.open("decisions")
        expect(page.locator("td button.name").nth(8)).to_be_visible()
        warm.context.close()
        for part in (every_view, decisions, hostile_names, keyboard, settings, linter, failures, upgrade):
            part(browser)
        browser.close()


main()
