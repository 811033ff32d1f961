"""Providers of the components that are not trained: which one serves a call, at which of its addresses, and whether
that address is well.

A rollout stays at one address, so that the provider's prompt cache serves it; a new rollout goes where the fewest calls
run. An address that fails FAILURES times in a row is ejected, asked for its models every few seconds, and re-admitted
when it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

import httpx

from agent_lightning.errors import EngineBusy, EngineError, SettingError
from agent_lightning.wire.dialect import Dialect
from agent_lightning.wire.dialects import MESSAGES

FAILURES = 3  # in a row, of an address: it is ejected
PROBE_SECONDS = 2.0  # between two looks at an ejected address
MOST_ROLLOUTS = 10_000  # whose address is remembered
CONNECT_SECONDS = 10.0
_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authorization", "proxy-authenticate", "te", "trailer", "transfer-encoding",
     "upgrade", "host", "content-length", "accept-encoding", "authorization", "x-api-key", "cookie", "set-cookie")
)  # fmt: skip
_OURS = "x-lightning-"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamConfig:
    """One provider: a table [upstreams.NAME] of the settings."""

    urls: tuple[str, ...]  # base addresses as SDKs take them: with /v1 for OpenAI's dialects, without for Anthropic's
    components: tuple[str, ...]  # globs against any element of a component's path
    key_env: str | None = None  # environment variable of the server that holds the provider's key
    model: str | None = None  # asked for in place of the agent's model
    timeout: float = 600.0  # seconds without a byte

    def __post_init__(self) -> None:
        if not self.urls or not self.components:
            raise SettingError(
                "an upstream needs urls and components: a list of addresses, and a list of names or globs"
            )
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise SettingError(
                    f"the upstream's address {url!r} is none: http://HOST/v1 or https://HOST/v1 is wanted"
                )
        if not 0.0 < self.timeout <= 86_400.0:
            raise SettingError(f"the upstream's timeout is {self.timeout}: seconds from 0 to 86400 are wanted")

    def serves(self, component: str) -> bool:
        names = component.split("/")
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.components)


@dataclass(slots=True, kw_only=True)
class Endpoint:
    """One address of a provider."""

    url: str
    running: int = 0  # calls that are being relayed
    failures: int = 0  # in a row
    ejected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed:
    """What the provider began to answer."""

    status: int
    content_type: str
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes] = field(repr=False)  # as they came; raises EngineBusy when the provider breaks off


class Upstream:
    """One provider and what is known of its addresses."""

    def __init__(self, name: str, config: UpstreamConfig, key: str | None, client: httpx.AsyncClient) -> None:
        self.name = name
        self.config = config
        self.endpoints = [Endpoint(url=url.rstrip("/")) for url in config.urls]
        self._key = key
        self._client = client
        self._home: OrderedDict[str, Endpoint] = OrderedDict()  # of rollouts, least recently used first
        self._probes: dict[str, asyncio.Task[None]] = {}

    def choose(self, rollout_id: str, tried: Sequence[Endpoint] = ()) -> Endpoint:
        """Where this rollout's calls go, none that was tried. Raises EngineBusy when no address is well."""
        home = self._home.get(rollout_id)
        if home is None or home.ejected or home in tried:
            well = [endpoint for endpoint in self.endpoints if not endpoint.ejected and endpoint not in tried]
            if not well:
                raise EngineBusy(
                    f"the provider {self.name!r} cannot be reached at {', '.join(self.config.urls)}: try again, and look "
                    "at its address in the settings (upstreams)"
                )
            home = min(well, key=lambda endpoint: endpoint.running)
        self._home[rollout_id] = home
        self._home.move_to_end(rollout_id)
        if len(self._home) > MOST_ROLLOUTS:
            self._home.popitem(last=False)
        return home

    async def relay(
        self, dialect: Dialect, path: str, headers: Mapping[str, str], body: bytes, rollout_id: str
    ) -> Relayed:
        """Ask the provider. An address that takes no connection is passed over for the next one.

        Raises EngineBusy when none can be reached, EngineError when the one that was asked gave no answer.
        """
        tried: list[Endpoint] = []
        while True:
            endpoint = self.choose(rollout_id, tried)
            tried.append(endpoint)
            request = self._client.build_request(
                "POST",
                _address(endpoint.url, path),
                content=body,
                headers=self._headers(dialect, headers),
                timeout=httpx.Timeout(self.config.timeout, connect=CONNECT_SECONDS),
            )
            endpoint.running += 1
            try:
                answer = await self._client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout):  # nothing was sent: another address may serve it
                endpoint.running -= 1
                self._failed(endpoint)
                continue
            except httpx.HTTPError as error:
                endpoint.running -= 1
                self._failed(endpoint)
                raise EngineError(
                    f"the provider {self.name!r} gave no answer ({type(error).__name__}: {error})"
                ) from error
            except BaseException:
                endpoint.running -= 1
                raise
            if answer.status_code >= 500:
                self._failed(endpoint)
            else:
                endpoint.failures = 0
            return Relayed(
                status=answer.status_code,
                content_type=answer.headers.get("content-type", "application/octet-stream"),
                headers=_kept(answer.headers),
                chunks=self._read(endpoint, answer),
            )

    async def close(self) -> None:
        for probe in self._probes.values():
            probe.cancel()
        await asyncio.gather(*self._probes.values(), return_exceptions=True)

    async def _read(self, endpoint: Endpoint, answer: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for chunk in answer.aiter_raw():
                yield chunk
        except httpx.HTTPError as error:
            self._failed(endpoint)
            raise EngineBusy(f"the provider {self.name!r} broke off its answer ({type(error).__name__})") from error
        finally:
            endpoint.running -= 1
            await answer.aclose()

    def _failed(self, endpoint: Endpoint) -> None:
        endpoint.failures += 1
        if endpoint.failures >= FAILURES and not endpoint.ejected:
            endpoint.ejected = True
            self._probes[endpoint.url] = asyncio.create_task(self._until_well(endpoint), name=f"look at {endpoint.url}")

    async def _until_well(self, endpoint: Endpoint) -> None:
        """Ends when the address answers anything but a failure of its own."""
        while endpoint.ejected:
            await asyncio.sleep(PROBE_SECONDS)
            with contextlib.suppress(httpx.HTTPError):
                answer = await self._client.get(_address(endpoint.url, "/v1/models"), headers=self._keys())
                endpoint.ejected = answer.status_code >= 500
        endpoint.failures = 0
        del self._probes[endpoint.url]

    def _headers(self, dialect: Dialect, headers: Mapping[str, str]) -> dict[str, str]:
        """The agent's own, less those of the connection and ours; the provider's key in place of the rollout's."""
        return {**_kept(headers), "accept-encoding": "identity", **self._keys(dialect)}

    def _keys(self, dialect: Dialect | None = None) -> dict[str, str]:
        if self._key is None:
            return {}
        named = {"x-api-key": self._key}
        bearer = {"authorization": f"Bearer {self._key}"}
        return {**named, **bearer} if dialect is None else named if dialect is MESSAGES else bearer


class Upstreams:
    """The providers of a run, asked in the order of the settings."""

    def __init__(self, configs: Mapping[str, UpstreamConfig], env: Mapping[str, str]) -> None:
        """`env` holds the providers' keys. Raises SettingError for a key that is named and not there."""
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(PROBE_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            follow_redirects=False,
        )
        self._all = [Upstream(name, config, _key(name, config, env), self._client) for name, config in configs.items()]

    def of(self, component: str) -> Upstream | None:
        """Who serves it; None for a component of the policy."""
        return next((upstream for upstream in self._all if upstream.config.serves(component)), None)

    async def close(self) -> None:
        for upstream in self._all:
            await upstream.close()
        await self._client.aclose()


def _key(name: str, config: UpstreamConfig, env: Mapping[str, str]) -> str | None:
    if config.key_env is None:
        return None
    if not env.get(config.key_env):
        raise SettingError(
            f"upstreams.{name}.key_env is {config.key_env!r}, but the server has no such environment variable: set it to "
            "the provider's key"
        )
    return env[config.key_env]


def _address(url: str, path: str) -> str:
    """`path` begins with /v1, which a base address of OpenAI's has too."""
    return url + (path.removeprefix("/v1") if url.endswith("/v1") else path)


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in headers.items()
        if (low := name.lower()) not in _HOP and not low.startswith(_OURS)
    }
