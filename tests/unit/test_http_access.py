"""Who may ask over HTTP, and what is refused, on the application alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from supervisor.config.settings import HttpSettings, Settings
from supervisor.config.types import Address
from supervisor.http.app import application
from supervisor.http.login import local_path
from supervisor.http.rates import Rates
from supervisor.http.sessions import SESSION_SECONDS
from supervisor.http.view import View
from supervisor.stores.memory.store import MemoryStore

TOKEN = "a token of more than 16 characters"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
PAGE = {"Accept": "text/html,application/xhtml+xml"}
CHANGE = "/api/queues/mail/pause"
OWN = {"Origin": "http://jobs.example"}


class Reader:
    def __init__(self) -> None:
        self.store = MemoryStore()

    async def read(self, call: Callable[[Any], Any]) -> Any:
        return call(self.store)

    def close(self) -> None: ...


class Site:
    def __init__(self, token: str | None = TOKEN, read_only: bool = False, rates: Rates | None = None) -> None:
        self.now = 1000.0
        settings = HttpSettings(listen=Address("127.0.0.1", 80), token=token, read_only=read_only)
        view = View(lambda: "running", Settings, dict, reader=Reader())  # type: ignore[arg-type]
        self.app = application(view, settings, rates, clock=lambda: self.now)
        self.clients: list[httpx.AsyncClient] = []

    def client(self, address: str = "10.0.0.7", host: str = "jobs.example") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, client=(address, 50_000))
        client = httpx.AsyncClient(transport=transport, base_url=f"http://{host}")
        self.clients.append(client)
        return client


def play(scene: Callable[[Site], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        site = Site(**options)
        try:
            await scene(site)
        finally:
            for client in site.clients:
                await client.aclose()

    asyncio.run(main())


async def log_in(client: httpx.AsyncClient, token: str = TOKEN, **headers: str) -> httpx.Response:
    return await client.post("/login", data={"token": token, "next": "/jobs/7"}, headers={**OWN, **headers})


def test_a_browser_is_led_to_the_login_and_from_there_to_the_page() -> None:
    async def scene(site: Site) -> None:
        browser = site.client()
        led = await browser.get("/jobs?state=failed&queue=a%20b", headers=PAGE)
        assert (led.status_code, led.headers["location"]) == (
            303,
            "/login?next=/jobs%3Fstate%3Dfailed%26queue%3Da%2520b",
        )
        form = await browser.get(led.headers["location"], headers=PAGE)
        assert form.status_code == 200 and 'value="/jobs?state=failed&amp;queue=a%20b"' in form.text
        entered = await log_in(browser)
        assert (entered.status_code, entered.headers["location"]) == (303, "/jobs/7")
        assert (await browser.get("/api/queues")).status_code == 200
        assert (await browser.get("/login?next=/x", headers=PAGE)).headers["location"] == "/x"

    play(scene)


def test_a_program_is_refused_without_a_redirect() -> None:
    async def scene(site: Site) -> None:
        for path, headers in (("/api/status", PAGE), ("/metrics", {}), ("/nothing", {"Accept": "*/*"})):
            refused = await site.client().get(path, headers=headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert "a token is required" in refused.text
        wrong = await site.client().get("/metrics", headers={"Authorization": "Bearer wrong"})
        assert wrong.status_code == 401 and "the token is wrong" in wrong.text
        sent = await site.client().post("/jobs/7/retry", headers={**PAGE, **OWN})
        assert (sent.status_code, sent.headers["location"]) == (303, "/login")

    play(scene)


def test_the_cookie_is_of_no_use_to_scripts_other_sites_and_networks() -> None:
    async def scene(site: Site) -> None:
        cookie = (await log_in(site.client())).headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={SESSION_SECONDS}"} <= set(cookie.split("; "))
        assert "Secure" not in cookie and "Domain" not in cookie and TOKEN not in cookie
        secure = site.client(host="jobs.example")
        assert "Secure" in (await log_in(secure, Origin="https://jobs.example")).headers["set-cookie"]

    play(scene)


def test_a_session_ends_by_logout_and_by_time() -> None:
    async def scene(site: Site) -> None:
        first, second = site.client(), site.client()
        await log_in(first)
        await log_in(second)
        stolen = dict(first.cookies)
        left = await first.post("/logout", headers=OWN)
        assert left.headers["location"] == "/login" and not first.cookies
        site.now += SESSION_SECONDS - 1
        assert (await site.client().get("/metrics", cookies=stolen)).status_code == 401
        assert (await second.get("/metrics")).status_code == 200
        site.now += 1
        assert (await second.get("/metrics")).status_code == 401

    with pytest.warns(DeprecationWarning, match="per-request cookies"):
        play(scene)


def test_the_login_says_that_a_token_is_wrong() -> None:
    async def scene(site: Site) -> None:
        client = site.client()
        for wrong in ("", "wrong", TOKEN + "x", "é\ud800".encode("utf-8", "surrogatepass").decode("latin-1")):
            refused = await log_in(client, wrong)
            assert refused.status_code == 403 and "not the token" in refused.text and not client.cookies
            site.now += 1000
        refused = await client.post("/login", content=b"token=%ff&" + b"a=1&" * 50, headers=OWN)
        assert refused.status_code == 403

    play(scene)


@pytest.mark.parametrize("path", ["/", "/jobs/7", "/jobs?state=failed&page=2", "/queues/a%20b", "/x/..;/y"])
def test_a_local_path_is_followed(path: str) -> None:
    assert local_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "", "jobs", "//evil.example", "///evil.example", "/\\evil.example", "\\\\evil.example", "http://evil.example", "/\t/evil.example",
        "/\n/evil.example", "/x\r\nSet-Cookie: a=b", "javascript:alert(1)", " //evil.example", '/"><script>', "/é", "/x#y", "/" + "x" * 3000,
    ],
)  # fmt: skip
def test_no_other_path_is_followed(path: str) -> None:
    assert local_path(path) == "/"


def test_wrong_tokens_make_an_address_wait_longer_each_time_and_no_other_address() -> None:
    async def scene(site: Site) -> None:
        client = site.client()
        for _ in range(5):
            assert (await client.get("/metrics", headers={"Authorization": "Bearer wrong"})).status_code == 401
        for wait in (1, 2, 4, 8, 16, 32, 60, 60):
            refused = await log_in(client)  # the right token: else a guess that is refused would be known as wrong
            assert (refused.status_code, refused.headers["retry-after"]) == (429, str(wait))
            refused = await client.get("/metrics", headers=RIGHT)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, str(wait))
            assert (await client.get("/livez", headers=RIGHT)).status_code == 200
            assert (await site.client("10.0.0.8").get("/metrics", headers=RIGHT)).status_code == 200
            site.now += wait
            assert (await log_in(client, "wrong")).status_code == 403
        site.now += 60
        assert (await log_in(client)).status_code == 303
        assert (await log_in(client, "wrong")).status_code == 403
        assert (await log_in(client)).status_code == 303

    play(scene)


def test_a_session_is_not_held_up_by_wrong_tokens_of_its_address() -> None:
    async def scene(site: Site) -> None:
        browser, other = site.client(), site.client()
        await log_in(browser)
        for _ in range(9):
            await log_in(other, "wrong")
        assert (await log_in(other)).status_code == 429
        assert (await browser.get("/metrics")).status_code == 200

    play(scene)


def test_requests_of_an_address_are_limited_and_probes_are_not() -> None:
    async def scene(site: Site) -> None:
        client = site.client("2001:db8::1")
        for _ in range(3):
            assert (await client.get("/metrics", headers=RIGHT)).status_code == 200
        refused = await client.get("/metrics", headers=RIGHT)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "content-security-policy" in refused.headers
        assert (await site.client("2001:db8::2").get("/metrics", headers=RIGHT)).status_code == 429
        assert (await site.client("2001:db8:0:1::1").get("/metrics", headers=RIGHT)).status_code == 200
        for _ in range(10):
            assert (await client.get("/livez")).status_code == (await client.get("/readyz")).status_code == 200
        site.now += 0.5
        assert (await client.get("/metrics", headers=RIGHT)).status_code == 200
        assert (await client.get("/metrics", headers=RIGHT)).status_code == 429

    play(scene, rates=Rates(requests_per_second=2, requests_at_once=3))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),  # a browser sends one of the two
        ({"Origin": "http://jobs.example"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://jobs.example:9000"}, 403),  # another port: the browser sends it the cookie all the same
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "null", "Host": ""}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://public.example"}, 200),  # behind a proxy
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://jobs.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
def test_a_session_changes_things_from_pages_of_this_server_only(headers: dict[str, str], status: int) -> None:
    async def scene(site: Site) -> None:
        browser = site.client()
        await log_in(browser)
        assert (await browser.post(CHANGE, headers=headers)).status_code == status
        if headers:
            assert (await browser.post("/logout", headers=headers)).status_code == (303 if status == 200 else 403)
            login = await browser.post("/login", data={"token": TOKEN}, headers=headers)
            assert login.status_code == (303 if status == 200 else 403)

    play(scene)


def test_a_program_with_the_token_needs_no_origin() -> None:
    async def scene(site: Site) -> None:
        assert (await site.client().post(CHANGE, headers=RIGHT)).status_code == 200
        for kind in ("bearer", "BEARER"):
            headers = {"Authorization": f"{kind}  {TOKEN} "}
            assert (await site.client().post(CHANGE, headers=headers)).status_code == 200
        for wrong in ("Basic", "Bearer", f"Basic {TOKEN}", f"Bearer{TOKEN}", "Bearer " + TOKEN[:-1]):
            assert (await site.client().get("/metrics", headers={"Authorization": wrong})).status_code == 401

    play(scene)


def test_a_page_that_leads_its_own_name_to_this_server_gets_nothing() -> None:
    async def scene(site: Site) -> None:
        evil = {"Host": "evil.example:80"}
        for path in ("/", "/metrics", "/api/status", "/login", "/livez"):
            assert (await site.client().get(path, headers=evil)).status_code == 421
        assert (
            await site.client().post(CHANGE, headers={**evil, "Origin": "http://evil.example:80"})
        ).status_code == 421

    play(scene, token=None)

    async def with_a_token(site: Site) -> None:
        """The cookie is of the host that has set it: the browser sends none under the other name."""
        browser = site.client()
        await log_in(browser)
        evil = {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}
        assert (await browser.get("http://evil.example/metrics", headers=evil)).status_code == 401
        assert (await browser.post(f"http://evil.example{CHANGE}", headers=evil)).status_code == 401

    play(with_a_token)


def test_without_a_token_there_is_nothing_to_log_in_to() -> None:
    async def scene(site: Site) -> None:
        client = site.client("127.0.0.1", "localhost")
        assert (await client.get("/login?next=/jobs")).headers["location"] == "/jobs"
        answer = await client.post("/login", data={"token": "anything"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/") and not client.cookies

    play(scene, token=None)


def test_a_read_only_server_has_a_login_and_no_changes() -> None:
    async def scene(site: Site) -> None:
        browser = site.client()
        assert (await log_in(browser)).status_code == 303
        for method, path in (("POST", CHANGE), ("DELETE", "/api/jobs/1"), ("POST", "/jobs/1/retry"), ("PUT", "/x")):
            assert (await browser.request(method, path, headers=OWN)).status_code == 403
        assert (await browser.post("/logout", headers=OWN)).status_code == 303

    play(scene, read_only=True)


def test_each_change_is_logged_once_with_who_sent_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "supervisor")

    async def scene(site: Site) -> None:
        browser = site.client()
        await log_in(browser)
        await browser.get("/metrics")
        await browser.post("/api/queues/a%0Ab/pause", headers=OWN)
        await site.client().post(CHANGE, headers=RIGHT)
        await site.client().post("/nothing", headers=RIGHT)
        await site.client().post(CHANGE)
        await log_in(site.client("10.0.0.9"), "wrong")
        await log_in(site.client("10.0.0.9"), "wrong")
        await browser.post("/logout", headers=OWN)

    play(scene)
    records = [record for record in caplog.records if record.name == "supervisor"]
    assert [record.getMessage() for record in records] == [
        "HTTP: login from 10.0.0.7",
        "HTTP: POST /api/queues/a%0Ab/pause by session from 10.0.0.7: 400",
        "HTTP: POST /api/queues/mail/pause by token from 10.0.0.7: 200",
        "HTTP: POST /nothing by token from 10.0.0.7: 404",
        "HTTP: a wrong token from 10.0.0.9",
        "HTTP: logout from 10.0.0.7",
    ]
    assert records[1].fields == {  # type: ignore[attr-defined]
        "actor": "session from 10.0.0.7", "method": "POST", "path": "/api/queues/a%0Ab/pause", "status": 400,
    }  # fmt: skip
