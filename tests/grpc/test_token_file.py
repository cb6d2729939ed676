"""Token files, the throttle, and who a call is for, without a server process."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grpc.identities import add
from umd_core.errors import ConfigError, LimitError, NotAuthorisedError, UmdError
from umd_grpc.server.authenticate import Guard
from umd_grpc.server.entries import Entry, digest, new_secret
from umd_grpc.server.identity import CALLER, Quota
from umd_grpc.server.interceptors import Authentication
from umd_grpc.server.throttle import BURST, PEERS, Throttle, peer_name
from umd_grpc.server.tokens import TokenFile, TokenStore

COUNTS = st.none() | st.integers(1, 2**63 - 1)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", fullmatch=True)
ENTRIES = st.builds(
    Entry,
    name=NAMES,
    sha256=st.just("") | st.binary(max_size=8).map(lambda raw: digest(raw.hex())),
    created=st.integers(0, 2**40),
    expires=st.none() | st.integers(0, 2**40),
    joins=st.booleans(),
    devices=st.none() | st.lists(st.text(max_size=9), max_size=3).map(tuple),
    quota=st.builds(Quota, COUNTS, COUNTS, COUNTS, COUNTS),
    weight=st.integers(1, 1000),
    admin=st.booleans(),
)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json", clock=lambda: 1_000.0)


@settings(max_examples=60, deadline=None)
@given(entries=st.lists(ENTRIES, max_size=5, unique_by=lambda entry: entry.name))
def test_what_is_added_is_read_again(tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]) -> None:
    file = TokenFile(tmp_path_factory.mktemp("t") / "tokens.json", clock=lambda: 0.0)
    for entry in entries:
        file.add(entry)
    assert file.load().entries == tuple(entries)


@settings(max_examples=100, deadline=None)
@given(
    raw=st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["version", "tokens", "refused", "name", "sha256", "x"]), inner)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_a_token_file_or_a_typed_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("t") / "tokens.json"
    path.touch(0o600)
    path.write_bytes(raw)
    try:
        TokenFile(path).load()
    except UmdError as error:
        assert str(path) in str(error)


def test_the_file_holds_what_it_says_and_no_secret(tokens: TokenFile) -> None:
    secret = add(tokens, "alice", created=5, devices=("sim:0",), quota=Quota(memory=8 << 30))
    assert json.loads(tokens.path.read_bytes()) == {
        "version": 1,
        "tokens": [
            {"name": "alice", "sha256": digest(secret), "created": 5, "devices": ["sim:0"], "memory": 8589934592}
        ],
        "refused": [],
    }
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    assert digest("umdt_abc") == "f46361290b4c80adad6941a477ed589ce23ee20d5dde001b15fe492e2e832b8a"
    assert secret.startswith("umdt_")
    assert len(secret) == 5 + 43


def test_names_and_numbers_are_checked(tokens: TokenFile) -> None:
    wrong = [
        Entry(""), Entry("../x"), Entry("x" * 65), Entry("a b"), Entry("x", weight=0), Entry("x", weight=1001),
        Entry("x", sha256="12"), Entry("x", quota=Quota(memory=0)), Entry("x", quota=Quota(sessions=-1)),
    ]  # fmt: skip
    for entry in wrong:
        with pytest.raises(ConfigError):
            tokens.add(entry)
    assert not tokens.path.exists()


def test_one_live_token_a_name(tokens: TokenFile) -> None:
    first = add(tokens, "alice")
    with pytest.raises(NotAuthorisedError, match="umd token revoke alice"):
        add(tokens, "alice")
    tokens.revoke("alice")
    second = add(tokens, "alice")
    found = tokens.load()
    assert found.find(first, 0) is None
    assert found.find(second, 0) == found.named("alice")
    assert found.refused == frozenset()
    add(tokens, "old", expires=999)
    assert add(tokens, "old")
    with pytest.raises(ConfigError, match="it has alice, old"):
        tokens.revoke("alcie")
    tokens.revoke("alcie", certificate=True)
    assert tokens.load().refused == {"alcie"}


def test_a_one_time_token_is_exchanged_once(tokens: TokenFile) -> None:
    secret = new_secret(joins=True)
    tokens.add(
        Entry("guest", digest(secret), 0, expires=2_000, joins=True, devices=("sim:0",), quota=Quota(sessions=2))
    )
    lasting, entry = tokens.exchange(secret)
    assert tokens.load().find(lasting, 1e12) == entry
    assert (entry.devices, entry.quota, entry.joins, entry.expires) == (("sim:0",), Quota(sessions=2), False, None)
    for used in (secret, lasting, new_secret(joins=True), "", "x" * 10_000):
        with pytest.raises(NotAuthorisedError, match="one-time token"):
            tokens.exchange(used)
    late = new_secret(joins=True)
    tokens.add(Entry("late", digest(late), 0, expires=1_000, joins=True))
    with pytest.raises(NotAuthorisedError, match="has expired"):
        tokens.exchange(late)


def _exchange(path: str, secret: str, found: Any) -> None:
    try:
        found.put(TokenFile(Path(path)).exchange(secret)[0])
    except NotAuthorisedError:
        found.put(None)


def test_of_many_processes_one_wins(tokens: TokenFile) -> None:
    secret = new_secret(joins=True)
    tokens.add(Entry("guest", digest(secret), joins=True))
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    started = [context.Process(target=_exchange, args=(str(tokens.path), secret, found)) for _ in range(6)]
    for process in started:
        process.start()
    for process in started:
        process.join(20)
    won = [token for token in (found.get() for _ in started) if token]
    assert len(won) == 1
    assert tokens.load().find(won[0], 0) is not None


def test_files_are_bounded_and_private(tokens: TokenFile) -> None:
    add(tokens, "alice")
    tokens.path.chmod(0o604)
    with pytest.raises(NotAuthorisedError, match="chmod 600"):
        tokens.load()
    tokens.path.chmod(0o600)
    tokens.path.write_bytes(b" " * (4 << 20) + b"{}")
    with pytest.raises(LimitError):
        tokens.load()


def test_a_store_reads_what_has_changed(tokens: TokenFile) -> None:
    store = TokenStore(tokens)
    assert not store.refresh()
    secret = add(tokens, "alice")
    assert store.refresh()
    assert store.tokens.find(secret, 0) is not None
    assert not store.refresh()
    tokens.path.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError):
        store.refresh()
    assert store.tokens.find(secret, 0) is not None
    tokens.path.unlink()
    assert store.refresh()
    assert store.tokens.find(secret, 0) is None


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:192.0.2.7:4711", "192.0.2.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4711", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2::9]:1", "2001:db8:1:2::/64"),
        ("ipv6:[::ffff:192.0.2.7]:1", "192.0.2.7"),
        ("ipv6:[fe80::1%eth0]:1", "fe80::/64"),
        ("unix:", "unix"),
        ("unix:/tmp/s", "unix"),
        ("", ""),
        ("ipv4:what", "ipv4"),
    ],
)
def test_what_a_peer_is_counted_as(peer: str, name: str) -> None:
    assert peer_name(peer) == name


def test_the_throttle_forgets_and_is_bounded() -> None:
    now = 0.0
    throttle = Throttle(lambda: now)
    worth = [throttle.failed("a") for _ in range(BURST + 5)]
    assert worth == [True] * BURST + [False] * 5
    assert throttle.wait_seconds("a", "key") == 6
    assert throttle.wait_seconds("b", "key") == 0
    now = 6.0
    assert throttle.wait_seconds("a", "key") == 0
    for number in range(3 * PEERS):
        throttle.failed(str(number))
        throttle.accepted(str(number), "key")
    assert len(throttle._failures) == PEERS


class Kinds:
    """Handlers of every kind, which answer with the name of the caller."""

    async def one(self, request: bytes, context: Any) -> bytes:
        return CALLER.get().name.encode()

    async def many(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for _ in range(2):
            yield CALLER.get().name.encode()

    async def gathered(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        async for _ in requests:
            pass
        return await asyncio.create_task(self.one(b"", context))

    async def written(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for _ in requests:
            await context.write(await self.one(b"", context))

    async def yielded(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield CALLER.get().name.encode()


async def _ask_all(guard: Guard, secret: str) -> list[Any]:
    kinds: Any = Kinds()
    server = grpc.aio.server(interceptors=(Authentication(guard),))
    methods: dict[str, Any] = {
        "one": grpc.unary_unary_rpc_method_handler(kinds.one),
        "many": grpc.unary_stream_rpc_method_handler(kinds.many),
        "gathered": grpc.stream_unary_rpc_method_handler(kinds.gathered),
        "written": grpc.stream_stream_rpc_method_handler(kinds.written),
        "yielded": grpc.stream_stream_rpc_method_handler(kinds.yielded),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("kinds", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    metadata = (("authorization", f"Bearer {secret}"),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        channel: Any = opened
        found = [await channel.unary_unary("/kinds/one")(b"", metadata=metadata)]
        found += [answer async for answer in channel.unary_stream("/kinds/many")(b"", metadata=metadata)]
        found.append(await channel.stream_unary("/kinds/gathered")([b"", b""], metadata=metadata))
        for name in ("written", "yielded"):
            found += [answer async for answer in channel.stream_stream(f"/kinds/{name}")([b"", b""], metadata=metadata)]
    await server.stop(0)
    assert CALLER.get().name == "local"
    return found


def test_handlers_of_every_kind_know_their_caller(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    secret = add(file, "alice")
    assert asyncio.run(_ask_all(Guard(TokenStore(file), Quota()), secret)) == [b"alice"] * 8


def test_a_quota_says_what_a_token_does_not(tokens: TokenFile) -> None:
    usual = Quota(memory=1, sessions=2, in_flight=3, ops_per_second=4)
    assert Entry("a", quota=Quota(sessions=9)).identity(usual).quota == Quota(1, 9, 3, 4)
    assert Entry("a").identity(usual).devices is None
    assert Entry("a", devices=("sim:0",)).identity(usual).devices == frozenset({"sim:0"})


async def _refused_unread(guard: Guard) -> tuple[grpc.StatusCode, int]:
    """Returns the code of a call without a token, and how many messages of it were read."""
    read = 0

    def deserialize(raw: bytes) -> bytes:
        nonlocal read
        read += 1
        return raw

    server = grpc.aio.server(interceptors=(Authentication(guard),))
    method: Any = grpc.unary_unary_rpc_method_handler(Kinds().one, deserialize)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("kinds", {"one": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        channel: Any = opened
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/kinds/one")(bytes(1 << 20))
    await server.stop(0)
    return caught.value.code(), read


def test_nothing_of_an_unknown_caller_is_read(tmp_path: Path) -> None:
    guard = Guard(TokenStore(TokenFile(tmp_path / "tokens.json")), Quota())
    assert asyncio.run(_refused_unread(guard)) == (grpc.StatusCode.UNAUTHENTICATED, 0)
