"""The dashboard in a browser: quiet, offline, readable at each width and in both colours, by keyboard, and without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import Engine, create_engine, func, select, text, update
from starlette.responses import PlainTextResponse, RedirectResponse

from sa_jobqueue.dashboard import Access, dashboard
from sa_jobqueue.dashboard.app import ACTIONS
from sa_jobqueue.models import AuditEntry, Job, Schedule, WorkerRow, WorkflowRow
from sa_jobqueue.statements import open_breaker
from tests.support.browsers import chromium, served
from tests.support.databases import Databases, driver_url
from tests.support.factory import make_job
from tests.support.failures import noted
from tests.support.nightly import nightly
from tests.support.scenes import REGISTRY, Scene, addresses, fill
from tests.support.waiting import wait_until

AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text()
#: Of a telephone, a laptop, and a large screen.
WIDTHS = (390, 1_280, 2_560)


@dataclass(frozen=True)
class Site:
    """A dashboard that is served, with a database of its own."""

    url: str
    engine: Engine
    scene: Scene


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@contextmanager
def site_of(databases: Databases) -> Iterator[Site]:
    name = databases.new_name()
    engine = create_engine(driver_url(databases.create(name), "psycopg"), pool_size=6)
    with engine.begin() as connection:
        scene = fill(connection)
    access = Access.ADMIN.named("ada@example.com")
    with served(dashboard(engine, access=lambda _: access, registry=REGISTRY)) as url:
        yield Site(url, engine, scene)
    engine.dispose()
    databases.drop(name)


@pytest.fixture(scope="module")
def shown(databases: Databases, browser: Any) -> Iterator[Site]:
    """For tests that only look."""
    with site_of(databases) as site:
        yield site


@pytest.fixture(scope="module")
def acted(databases: Databases, browser: Any) -> Iterator[Site]:
    """For tests of what changes while a page is open."""
    with site_of(databases) as site:
        yield site


@pytest.fixture
def site(databases: Databases, browser: Any) -> Iterator[Site]:
    """For a test that acts."""
    with site_of(databases) as site:
        yield site


NAMES = tuple(addresses(Scene(1, 1, 1, 1, 1, 1)))
#: Pages that have what the others have: a filter, a table and forms; a graph.
EXAMPLES = ("jobs", "workflow")


class Tab:
    """A page of the browser, and what it says and asks for meanwhile."""

    def __init__(self, browser: Any, site: Site, *, width: int = 1_280, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.site = site
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("requestfailed", self._note_failure)
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _note_failure(self, request: Any) -> None:
        # What is asked for when the page is left comes to nothing.
        if request.failure != "net::ERR_ABORTED":
            self.said.append(f"failed: {request.url} {request.failure}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def forget(self) -> None:
        """Begin again as a tab that was opened just now."""
        self.page.evaluate("localStorage.clear()")
        self.page.set_viewport_size({"width": 1_280, "height": 900})
        self.page.emulate_media(color_scheme="light")
        self.said.clear()
        self.asked.clear()

    def go(self, path: str) -> Any:
        answer = self.page.goto(self.site.url + path)
        self.page.wait_for_load_state("networkidle")
        return answer

    @property
    def hosts(self) -> set[str | None]:
        return {urlsplit(one).hostname for one in self.asked if not one.startswith("data:")}


# ---- every page


@pytest.fixture(scope="module")
def opened(browser: Any, shown: Site) -> Iterator[Tab]:
    with Tab(browser, shown, color_scheme="light") as tab:
        yield tab


@pytest.fixture
def tab(opened: Tab) -> Tab:
    """A tab in which only what is there is looked at. It is opened once: that takes as long as five pages."""
    opened.go("/audit")
    opened.forget()
    return opened


def test_every_page_is_quiet_and_offline_and_fits_a_telephone(tab: Tab) -> None:
    """What is wider scrolls by itself. Some are looked at in each way."""
    failures: list[str] = []
    for name, path in addresses(tab.site.scene).items():
        tab.forget()
        answer = tab.go(path)
        with noted(failures, name):
            is_quiet_and_offline(tab, name, answer.status)
            fits(tab, *(WIDTHS if name in EXAMPLES else WIDTHS[:1]))
            if name in EXAMPLES:
                every_control_is_reached_by_tab(tab)
                axe_finds_nothing(tab)
    assert not failures, "\n".join(failures)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_page(browser: Any, shown: Site, name: str) -> None:
    """Each is looked at once, and that once in each way."""
    with Tab(browser, shown, color_scheme="light") as tab:
        answer = tab.go(addresses(shown.scene)[name])
        is_quiet_and_offline(tab, name, answer.status)
        every_control_is_reached_by_tab(tab)
        fits(tab, *WIDTHS)
        axe_finds_nothing(tab)


def is_quiet_and_offline(tab: Tab, name: str, status: int) -> None:
    """Nothing is said on the console, also when it has refreshed itself, and no request leaves."""
    if tab.page.locator("[data-live]").count():
        with tab.page.expect_response(lambda one: one.request.headers.get("hx-request") == "true"):
            tab.page.evaluate("htmx.trigger(document.querySelector('[data-live]'), 'refresh')")
        tab.page.wait_for_load_state("networkidle")
    expected = {"nothing": 404, "what cannot be read": 400}.get(name, 200)
    # The browser itself notes a status that is an error.
    noted = [one for one in tab.said if not (expected != 200 and "Failed to load resource" in one)]
    assert noted == []
    assert tab.hosts == {"127.0.0.1"}
    assert status == expected


def every_control_is_reached_by_tab(tab: Tab) -> None:
    """In the order of the page, from where the focus is, and each shows that it is the one."""
    tab.page.evaluate("document.getElementById('refresh') && (document.getElementById('refresh').value = '0')")
    wanted = min(tab.page.evaluate(_COUNT_CONTROLS), 40)
    reached = []
    for _ in range(wanted):
        tab.page.keyboard.press("Tab")
        reached.append(tab.page.evaluate(_FOCUSED))
    places = [place for place, _ in reached]
    start = places.index(min(places))  # a field that was not understood has the focus at first
    assert places[start:] + places[:start] == sorted(set(places))
    assert [place for place, outline in reached if place >= 0 and outline in ("", "none")] == []


def fits(tab: Tab, *widths: int) -> None:
    """A screen of this width shows the whole page; what is wider scrolls by itself."""
    for width in widths:
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
    tab.page.set_viewport_size({"width": 1_280, "height": 900})


def axe_finds_nothing(tab: Tab) -> None:
    """Names, labels, contrast, order: what can be checked by a program; in the light and in the dark."""
    tab.page.evaluate(AXE)
    for scheme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=scheme)
        found = tab.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found["violations"]] == []


@pytest.mark.nightly
@pytest.mark.parametrize("width", [390, 2_560])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_another_width(browser: Any, shown: Site, name: str, width: int) -> None:
    """Loaded with that width. On a telephone the menu is scrolled to the page, a filter does not push the content off the screen, and a list
    of jobs is not wider than the screen.
    """
    with Tab(browser, shown, width=width, color_scheme="light") as tab:
        tab.go(addresses(shown.scene)[name])
        assert tab.page.evaluate("[...document.querySelectorAll('.jobs')].every(one => one.scrollWidth <= innerWidth)")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.page.evaluate(_MENU_AND_CONTENT) == [[], True]
        axe_finds_nothing(tab)


#: Links of the menu to this page that are outside the screen, and whether the content begins on its upper half.
_MENU_AND_CONTENT = """(() => {
  const off = one => { const { left, right } = one.getBoundingClientRect(); return left < 0 || right > innerWidth; };
  return [[...document.querySelectorAll('header nav [aria-current]')].filter(off).map(one => one.textContent),
          (document.querySelector('.edit, #live')?.getBoundingClientRect().top ?? 0) < innerHeight / 2];
})()"""
_CONTROLS = "[...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex=\"0\"]')]"
_COUNT_CONTROLS = f"{_CONTROLS}.filter(one => one.checkVisibility() && !one.disabled).length"
_FOCUSED = f"""(() => {{
  const one = document.activeElement, style = getComputedStyle(one);
  return [{_CONTROLS}.indexOf(one), style.outlineStyle === 'none' ? getComputedStyle(one.querySelector('rect') ?? one).outlineStyle : style.outlineStyle];
}})()"""


# ---- keys, colours, refreshing


def test_keys_lead_to_the_filter_and_to_pages(tab: Tab) -> None:
    tab.go("/jobs")
    tab.page.keyboard.press("/")
    assert tab.page.evaluate("document.activeElement.name") == "id"
    tab.page.keyboard.type("/g")  # within the field they are letters
    assert tab.page.evaluate("document.activeElement.value") == "/g"
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.keyboard.press("g")
    tab.page.keyboard.press("s")
    tab.page.wait_for_url("**/schedules")
    tab.page.keyboard.press("Control+k")
    tab.page.keyboard.type("end_rec")
    tab.page.locator("#found a").first.wait_for()
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/tasks/shop.send_receipt")
    assert tab.said == []


def test_the_colours_are_chosen_and_kept(tab: Tab) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    tab.go("/jobs")
    light = tab.page.evaluate(background)
    tab.page.click("#theme")
    dark = tab.page.evaluate(background)
    assert light != dark
    tab.go("/audit")
    assert tab.page.evaluate(background) == dark
    assert tab.said == []


def test_the_title_counts_problems_and_times_are_of_the_chosen_zone(tab: Tab) -> None:
    """Of the doctor, on every page; a time is how long ago, until another choice."""
    tab.go("/jobs?status=failed")
    wait_until(lambda: tab.page.title().startswith("("))
    assert tab.page.locator("link[rel=icon]").get_attribute("href").startswith("data:image/svg+xml")
    time = tab.page.locator("tbody time").first
    assert time.text_content().endswith("ago")
    tab.page.select_option("#zone", "utc")
    utc = time.get_attribute("datetime").replace("T", " ")[:19]
    assert time.text_content() == f"{utc} UTC"
    tab.go("/jobs?status=failed")
    assert tab.page.locator("tbody time").first.text_content().endswith(" UTC")
    tab.page.select_option("#zone", "")
    assert tab.page.locator("tbody time").first.text_content().endswith("ago")
    assert tab.said == []


def test_a_time_is_chosen_by_dragging_in_a_chart(tab: Tab) -> None:
    """In whole steps; the page shows it, and its address keeps it."""
    tab.go("/queues/mail?by=task")
    drawn = tab.page.locator("#backlog-chart .u-over")
    drawn.scroll_into_view_if_needed()
    chart = drawn.bounding_box()
    left, middle = chart["x"], chart["y"] + chart["height"] / 2
    tab.page.mouse.move(left + chart["width"] * 0.4, middle)
    tab.page.mouse.down()
    tab.page.mouse.move(left + chart["width"] * 0.6, middle, steps=3)
    tab.page.mouse.up()
    tab.page.wait_for_url(re.compile(r"\?by=task&from="))
    asked = parse_qs(urlsplit(tab.page.url).query)
    begin, end = (datetime.fromisoformat(asked[name][0]) for name in ("from", "to"))
    assert (begin.minute % 15, end.minute % 15, 4 <= (end - begin) / timedelta(hours=1) <= 6) == (0, 0, True)
    assert f"{begin:%Y-%m-%d %H:%M} to " in tab.page.locator("nav[aria-label='Time shown'] [aria-current]").inner_text()
    assert tab.said == []


def test_a_number_changes_while_the_page_is_open(browser: Any, acted: Site) -> None:
    """And what the viewer has opened stays as it is."""
    with Tab(browser, acted) as tab:
        tab.go(f"/workflows/{acted.scene.workflow}?unfold=yes")
        numbers = tab.page.locator("#flow-numbers")
        before = numbers.text_content()
        box = tab.page.locator(f'[data-box="{_last_running(acted)}"]')
        assert "running" in (box.get_attribute("class") or "")
        tab.page.click(".graph .tools button:first-child")
        width = tab.page.locator(".graph svg").get_attribute("width")
        with acted.engine.begin() as connection:
            connection.execute(
                text("UPDATE sa_jobqueue.job SET status = 'completed', finished_at = now() WHERE id = :id"),
                {"id": _last_running(acted)},
            )
        wait_until(lambda: numbers.text_content() != before)
        wait_until(lambda: "completed" in (box.get_attribute("class") or ""))
        assert tab.page.locator(".graph svg").get_attribute("width") == width
        assert tab.said == []


def _last_running(site: Site) -> int:
    with site.engine.connect() as connection:
        found = connection.scalar(
            select(func.max(Job.id)).where(Job.workflow_id == site.scene.workflow, Job.status == "running")
        )
    assert found is not None
    return found


def test_refreshing_can_be_turned_off(browser: Any, acted: Site) -> None:
    with Tab(browser, acted) as tab:
        tab.go("/audit")
        tab.page.select_option("#refresh", "0")
        asked = len(tab.asked)
        # What a page of another tab gets meanwhile is the clock: it has refreshed itself twice.
        with Tab(browser, acted) as other:
            other.go("/audit")
            other.page.select_option("#refresh", "1")
            begun = len(other.asked)
            wait_until(lambda: other.page.evaluate("1") and len(other.asked) >= begun + 2)
        assert len(tab.asked) == asked


def test_a_database_that_is_away_is_said_and_the_page_comes_back(
    browser: Any, acted: Site, databases: Databases
) -> None:
    with Tab(browser, acted) as tab:
        tab.go("/audit")
        tab.page.select_option("#refresh", "1")
        with databases.away(acted.engine.url.render_as_string(hide_password=False)):
            wait_until(lambda: "does not answer" in (tab.page.text_content("main") or ""))
        wait_until(lambda: "grace@example.com" in (tab.page.text_content("main") or ""))


def test_a_server_that_is_gone_is_said_and_a_login_in_its_place_is_gone_to(browser: Any, acted: Site) -> None:
    """Old numbers never look like new ones, and no page of another shows up inside ours."""
    pages, instead = dashboard(acted.engine, access=lambda _: Access.READ), list[Any]([None])

    async def front(scope: Any, receive: Any, send: Any) -> None:
        is_login = scope["path"] == "/login"
        answer = PlainTextResponse("log in") if is_login else instead[0] or pages
        await answer(scope, receive, send)

    with served(front) as url, closing(browser.new_page()) as page:
        page.goto(f"{url}/audit")
        page.select_option("#refresh", "1")
        wait_until(lambda: "as of" in page.text_content("#state"))
        instead[0] = PlainTextResponse("bad gateway", 502)
        wait_until(lambda: "No answer since" in page.text_content("#lost"))
        assert "grace@example.com" in page.text_content("#live")
        instead[0] = None
        wait_until(lambda: page.text_content("#lost") == "" and "as of" in page.text_content("#state"))
        instead[0] = RedirectResponse("/login", 302)
        page.wait_for_url(f"{url}/login")


# ---- the graph


def test_the_graph_of_a_workflow_is_drawn(tab: Tab) -> None:
    """A box for each part, edges from the right of a box to the left of another, and what is too wide is made to fit."""
    tab.go(f"/workflows/{tab.site.scene.workflow}?unfold=yes")
    graph = tab.page.locator(".graph svg")
    assert graph.locator("a.box").count() == 15
    assert graph.locator("path.edge").count() == 23
    assert (
        graph.locator("path.edge.loose").count() == 10
    )  # of what goes on however a part ends: each page, and the report
    ends = tab.page.evaluate(_EDGES_OFF_THE_BOXES)
    assert ends == []
    overlap = tab.page.evaluate(_OVERLAPPING_BOXES)
    assert overlap == []
    wide = float(graph.get_attribute("width"))
    tab.page.click(".graph .tools button:nth-child(1)")
    assert float(graph.get_attribute("width")) > wide
    tab.page.click(".graph .tools button:nth-child(3)")
    assert float(graph.get_attribute("width")) == wide
    graph.locator("a.box").first.click()
    assert re.search(r"/jobs/\d+$", tab.page.url)


#: Edges that do not begin in the middle of a box's right side, or end in the middle of a left side, with the distances.
_EDGES_OFF_THE_BOXES = """(() => {
  const boxes = [...document.querySelectorAll('.graph a.box')].map(one => [...one.querySelectorAll('rect')].at(-1).getBBox());
  const off = ({x, y}, side) => Math.min(...boxes.map(box => Math.hypot(x - box.x - side * box.width, y - box.y - box.height / 2)));
  return [...document.querySelectorAll('.graph path.edge')].map(path =>
    [off(path.getPointAtLength(0), 1), off(path.getPointAtLength(path.getTotalLength()), 0)]).filter(both => Math.max(...both) > 2);
})()"""
_OVERLAPPING_BOXES = """(() => {
  const boxes = [...document.querySelectorAll('.graph a.box')].map(one => [...one.querySelectorAll('rect')].at(-1).getBBox());
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b =>
    a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height).map(b => [a.x, a.y, b.x, b.y]));
})()"""


def test_a_fan_out_is_folded_into_one_box(tab: Tab) -> None:
    tab.go(f"/workflows/{tab.site.scene.large_workflow}")
    said = [one.locator("text").all_text_contents() for one in tab.page.locator("a.box").all()]
    assert ["shop.index_page × 582", "562 completed, 20 blocked"] in said
    assert len(said) == 5
    tab.page.locator("a.box", has_text="× 582").click()
    assert "workflow=" in tab.page.url
    assert "task=shop.index_page" in tab.page.url


def test_a_box_of_similar_jobs_opens_by_a_click(tab: Tab) -> None:
    tab.go(f"/workflows/{tab.site.scene.workflow}")
    assert tab.page.locator("a.box").count() == 7
    tab.page.locator("a.box", has_text="× 9").click()
    tab.page.wait_for_function("document.querySelectorAll('a.box').length === 15")
    assert tab.page.locator("a.box", has_text="page=2").locator(".said").text_content() == "failed · page=2"
    tab.page.click("text=Group similar jobs")
    tab.page.wait_for_function("document.querySelectorAll('a.box').length === 7")
    assert tab.said == []


# ---- actions, with JavaScript and without


@pytest.mark.parametrize(
    "script", [pytest.param(True, marks=pytest.mark.nightly), False], ids=["with JavaScript", "without"]
)
def test_a_schedule_is_paused_run_and_backfilled_by_clicking(browser: Any, site: Site, script: bool) -> None:
    with Tab(browser, site, java_script_enabled=script) as tab:
        page, row = tab.page, f"#schedule-{site.scene.schedule}"
        tab.go("/schedules")
        page.click(f"{row} summary")
        page.fill(f"{row} input[name=reason]", "the provider is down")
        page.click(f"{row} details button")
        assert "Paused the schedule " in page.text_content(".said")
        assert "the provider is down (ada@example.com)" in page.text_content(row)
        page.click(f"{row} button:text('Resume')")
        page.click(f"{row} button:text('Run now')")
        assert "Enqueued 1 job of the schedule" in page.text_content(".said")
        page.click(f"{row} a:text('Backfill')")
        page.fill("input[name=from]", "2025-11-03")
        page.fill("input[name=to]", "2025-11-08")
        page.click("button:text('Preview')")
        assert "This would enqueue 5 jobs" in page.text_content(".notice")
        page.click("button:text('Enqueue them')")
        assert "Enqueued 5 jobs for past ticks of the schedule" in page.text_content(".said")
        assert tab.said == []
    with site.engine.connect() as connection:
        number = connection.scalar(select(func.count()).where(Job.schedule_id == site.scene.schedule))
        assert number == 1 + 1 + 5
        assert connection.scalar(select(Schedule.paused_at).where(Schedule.id == site.scene.schedule)) is None
        did = connection.scalars(select(AuditEntry.action).order_by(AuditEntry.id.desc()).limit(4)).all()
        assert did == ["backfill", "run_schedule", "resume_schedule", "pause_schedule"]


@pytest.mark.nightly
@pytest.mark.parametrize("script", [True, False], ids=["with JavaScript", "without"])
def test_a_workflow_is_retried_paused_and_cancelled_by_clicking(browser: Any, site: Site, script: bool) -> None:
    with Tab(browser, site, java_script_enabled=script) as tab:
        page = tab.page
        tab.go("/workflows")
        page.click(f"#workflow-{site.scene.workflow} a >> nth=0")
        page.click("button:text('Retry from here')")
        assert "Retried 1 job" in page.text_content(".said")
        page.click("button:text('Pause the workflow')")
        page.click("button:text('Resume the workflow')")
        page.click("button:text('Cancel the workflow')")
        assert "Jobs that have not ended: " in page.text_content(".notice")
        page.click("a:text('No, go back')")
        page.click("button:text('Cancel the workflow')")
        page.click("button:text('Yes')")
        assert "Cancelled 1 workflow: " in page.text_content(".said")
        assert tab.said == []
    with site.engine.connect() as connection:
        did = connection.scalars(select(AuditEntry.action).order_by(AuditEntry.id.desc()).limit(4)).all()
        assert did == ["cancel_workflow", "resume_workflow", "pause_workflow", "retry_node"]


@pytest.mark.parametrize("script", [True, *nightly(False)], ids=["with JavaScript", "without"])
def test_jobs_are_retried_by_clicking(browser: Any, site: Site, script: bool) -> None:
    """One that is ticked; and all that match a filter, after a question."""
    with Tab(browser, site, java_script_enabled=script) as tab:
        page = tab.page
        tab.go("/jobs?status=failed")
        page.check(f"#job-{site.scene.job} input[type=checkbox]")
        page.click("#chosen button:text('Retry')")
        assert "Retried 1 job." in page.text_content(".said")
        page.click("form.row >> button:text('Retry') >> nth=-1")
        assert "again, now?" in page.text_content(".notice")
        page.click("button:text('Yes')")
        assert "Retried" in page.text_content(".said")
        assert tab.said == []
    with site.engine.connect() as connection:
        assert connection.scalar(select(func.count()).where(Job.status == "failed")) == 0


@pytest.mark.parametrize("names", [("jobs", "errors"), *nightly(NAMES)], ids=["some", "all"])
def test_what_a_row_says_is_not_run(browser: Any, site: Site, names: Sequence[str]) -> None:
    """A hostile job, in a real browser: nothing of it is an element, and no script of it runs."""
    bad: Sequence[str] = (
        "<script>window.bad = 1</script>",
        "<img src=x onerror='window.bad = 1'>",
        "</textarea><svg onload='window.bad = 1'>",
    )
    with site.engine.begin() as connection:
        for id, one in enumerate(bad, 1_000_000):
            errors = [{"type": one, "message": one, "traceback": one, "attempt": 1, "at": "now"}]
            make_job(
                connection,
                "failed",
                id=id,
                task=one,
                queue=one,
                args={one: one},
                meta={"tags": [one]},
                errors=errors,
                workflow_id=site.scene.workflow,
            )
    with Tab(browser, site) as tab:
        paths = addresses(site.scene)
        for path in [*(paths[name] for name in names), *(f"/jobs/{id}" for id in range(1_000_000, 1_000_003))]:
            tab.go(path)
            assert tab.page.evaluate("window.bad") is None
            assert tab.page.locator("img").count() == 0


# ---- what someone on call does, with the clicks that it takes


class Clicks:
    """Counts what a viewer clicks, and fields that are filled in and sent. A page that opens says nothing on the console."""

    def __init__(self, tab: Tab) -> None:
        self.page, self.number = tab.page, 0
        tab.go("/")

    def __call__(self, selector: str, value: str | None = None) -> None:
        self.number += 1
        if value is None:
            self.page.click(selector)
        else:
            self.page.fill(selector, value)
            self.page.press(selector, "Enter")
        self.page.wait_for_load_state("networkidle")


def test_why_a_job_failed_is_seen_in_one_click_and_all_like_it_are_retried_in_three(browser: Any, site: Site) -> None:
    """From the overview: its id, the button next to its error, and the answer to the question."""
    with Tab(browser, site) as tab:
        click = Clicks(tab)
        click(".find input", str(site.scene.job))
        assert "ConnectionRefusedError" in tab.page.text_content("#job-why")
        click("#job-errors button:text('Retry all')")
        click("button:text('Yes, retry all')")
        assert re.search(r"Retried \d+ jobs?\.", tab.page.text_content(".said"))
        assert click.number == 3
        assert tab.said == []
    with site.engine.connect() as connection:
        assert connection.scalar(select(Job.status).where(Job.id == site.scene.job)) == "queued"


@pytest.mark.nightly
def test_a_workflow_is_cancelled_in_three_clicks(browser: Any, site: Site) -> None:
    with Tab(browser, site) as tab:
        click = Clicks(tab)
        click("header nav a:text('Workflows')")
        click(f"#workflow-{site.scene.workflow} button:text('Cancel')")
        click("button:text('Yes')")
        assert "Cancelled 1 workflow: " in tab.page.text_content(".said")
        assert click.number == 3


@pytest.mark.nightly
def test_the_limit_of_a_tenant_is_lowered_in_three_clicks(browser: Any, site: Site) -> None:
    """Its key in the field that finds, the key in the list below it, and a number in the form that is open on its page."""
    with Tab(browser, site) as tab:
        click = Clicks(tab)
        click(".find input")
        tab.page.keyboard.type("tenant-1")
        click("#found a:text-is('tenant-1')")
        click("input[name=running] >> nth=0", "2")
        assert "3 → 2" in tab.page.text_content("main")
        assert tab.page.input_value("input[name=running] >> nth=0") == "2"
        assert click.number == 3
        assert tab.said == []


@pytest.mark.nightly
def test_whether_the_workers_keep_up_is_read_on_the_overview_and_since_yesterday_in_a_click(
    browser: Any, shown: Site
) -> None:
    with Tab(browser, shown) as tab:
        click = Clicks(tab)
        verdict = re.compile(r"(Keeps up|Falls behind): [\d,]+ in, [\d,]+ out in .*; ")
        assert verdict.match(tab.page.text_content(".verdict"))
        click("nav.tabs a:text('24h')")
        assert verdict.match(tab.page.text_content(".verdict"))
        assert click.number == 1


@pytest.mark.nightly
def test_a_job_is_found_read_and_retried_by_keyboard_alone(browser: Any, site: Site) -> None:
    """Ctrl-K leads to the field, Enter to the job, and Tab to its button."""
    with Tab(browser, site) as tab:
        tab.go("/")
        keys = tab.page.keyboard
        keys.press("Control+k")
        keys.type(str(site.scene.job))
        keys.press("Enter")
        tab.page.wait_for_url(f"**/jobs/{site.scene.job}")
        tab.page.wait_for_load_state("networkidle")
        for _ in range(40):
            keys.press("Tab")
            if tab.page.evaluate("document.activeElement.textContent.trim()") == "Retry":
                break
        keys.press("Enter")
        tab.page.wait_for_selector(".said")
        assert "Retried 1 job." in tab.page.text_content(".said")
        assert tab.said == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_page_without_javascript_shows_what_it_has(browser: Any, shown: Site, name: str) -> None:
    """Each chart has its table, each graph the table of jobs; and nothing waits for a script to be shown."""
    with Tab(browser, shown, java_script_enabled=False) as tab:
        tab.go(addresses(shown.scene)[name])
        page = tab.page
        assert (
            page.locator("[data-chart]").count()
            == page.locator("[data-chart] ~ details table, [data-chart] ~ details .none").count()
        )
        assert page.locator("[data-graph]").count() == page.locator("table.nodes").count()
        content = "#live table, #live form, #live .none, #live .notice, #live .tiles, #live .found, main form, #live p"
        assert page.locator(content).filter(visible=True).count()
        assert not page.locator(".tools button, .tools select").filter(visible=True).count()


# ---- every action


@pytest.fixture(scope="module")
def clicked(databases: Databases, browser: Any) -> Iterator[Site]:
    """For the tests that click on everything, one after the other."""
    with site_of(databases) as site:
        yield site


@pytest.mark.nightly
@pytest.mark.parametrize(
    "action", [name for name in ACTIONS if name not in {"undo", "undo_by_cancel", "undo_cancel", "unacknowledge"}]
)
def test_each_action_has_a_button_that_does_it(browser: Any, clicked: Site, action: str) -> None:
    """Found on some page, and clicked; what is asked for is confirmed; and it is in the audit."""
    before = number_of_actions(clicked, action)
    if action in {"retry_node", "retry_workflow"}:  # another action may have brought it back
        with clicked.engine.begin() as connection:
            first = select(func.min(Job.id)).where(Job.workflow_id == clicked.scene.workflow).scalar_subquery()
            failed = {"status": "failed", "finished_at": func.now()}
            connection.execute(
                update(Job).where(Job.id == first).values(failed | {"blocked_by": None, "lease_expires_at": None})
            )
            connection.execute(update(WorkflowRow).where(WorkflowRow.id == clicked.scene.workflow).values(failed))
    if action == "fork":  # the form that edits has run the job again
        with clicked.engine.begin() as connection:
            failed = {"status": "failed", "finished_at": func.now()}
            connection.execute(update(Job).where(Job.id == clicked.scene.job).values(failed))
    if action in {"drain_worker", "set_slots"}:  # a worker that was not seen for a while is not asked
        with clicked.engine.begin() as connection:
            connection.execute(update(WorkerRow).values(seen_at=func.now()))
    if action == "close_breaker":
        with clicked.engine.begin() as connection:
            connection.execute(open_breaker("shop.report"))
    with Tab(browser, clicked) as tab:
        tab.context.add_init_script("localStorage.setItem('sa_jobqueue.refresh', '0')")
        button = button_for(tab, action)
        button.evaluate("one => one.closest('details') && (one.closest('details').open = true)")
        form = button.evaluate_handle("one => one.form").as_element()
        for name, value in FIELDS.get(action, {}).items():
            field = form.query_selector(f'[name="{name}"]')
            (field.select_option if field.evaluate("one => one.localName") == "select" else field.fill)(value)
        if form.get_attribute("id") == "chosen":
            tab.page.check("#chosen tbody input[type=checkbox] >> nth=0")
        button.click()
        if tab.page.locator("input[name=confirmed]").count():
            if (typed := tab.page.locator("input[name=typed]")).count():
                typed.fill(typed.evaluate("one => one.parentElement.textContent.match(/“(.*)”/)[1]"))
            tab.page.click("form[action*='/act/'] button")
        tab.page.wait_for_selector(".said, #rows-title")
        assert "Nothing was changed" not in tab.page.text_content("main")
        if action in TAKEN_BACK:
            label, said = TAKEN_BACK[action]
            tab.page.click(f"button:text-is('{label}')")
            tab.page.wait_for_selector(f"text={said}")
        assert tab.said == []
    assert number_of_actions(clicked, action) == before + 1


#: By action, the button that takes it back, and the message after that.
TAKEN_BACK = {
    "retry": ("Undo what has not started", "Failed again, as before the retry: 1 job"),
    "cancel": ("Undo", "Back in the queue"),
    "acknowledge": ("Take back", "It counts again"),
}
#: What a form must say that the page has not filled in.
FIELDS = {
    "set_limit": {"name": "mail", "running": "7"},
    "set_slots": {"queue": "mail", "slots": "7"},
    "open_breaker": {"owner": "task", "name": "shop.report"},
    "enqueue": {"arg.order_id": "7", "arg.to": "ada@example.com"},
}
#: Where there is a button only for jobs in some state.
WHERE = {
    "retry": "/jobs?status=failed&queue=mail",
    "resume": "/queues",
    "delete": "/jobs?status=completed&queue=mail",
    "discard": "/jobs?status=queued",
    "cancel": "/jobs?status=queued",
}


def button_for(tab: Tab, action: str) -> Any:
    """The first button for it, on a page where there is one."""
    paths = addresses(tab.site.scene)
    rest = ["/schedules?state=paused", f"/jobs/{tab.site.scene.running}", "/workflows?state=paused"]
    with tab.site.engine.connect() as connection:
        paused = connection.scalars(select(WorkflowRow.id).where(WorkflowRow.paused_at.is_not(None))).all()
    for path in (
        [WHERE[action]] if action in WHERE else [*paths.values(), *rest, *(f"/workflows/{id}" for id in paused)]
    ):
        tab.page.goto(tab.site.url + path, wait_until="domcontentloaded")
        found = tab.page.locator(
            f'[formaction$="/act/{action}"], form[action$="/act/{action}"] button:not([formaction])'
        )
        if found.count():
            tab.page.wait_for_load_state("networkidle")
            tab.said.clear()
            return found.first
    raise AssertionError(f"no page has a button for {action}")


def number_of_actions(site: Site, action: str) -> int:
    with site.engine.connect() as connection:
        return connection.scalar(select(func.count()).where(AuditEntry.action == action)) or 0
