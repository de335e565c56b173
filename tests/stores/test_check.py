"""Servers that are not as they should be: each named, with a remedy, within five seconds."""

import asyncio
import datetime
import logging
import secrets
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

import holdfast
from holdfast import events
from holdfast.stores.postgres import store as postgres_store
from holdfast.stores.redis import store as redis_store
from tests.servers import Postgres, Valkey, free_port
from tests.stores.refusals import refused, use_once

pytestmark = pytest.mark.anyio


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Somebody who takes the connection and never says a word."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening.getsockname()[1]


@pytest.mark.promise("server.unreachable")
@pytest.mark.parametrize("scheme", ["postgresql", "redis", "valkey"])
async def test_a_server_that_is_not_there_or_says_nothing(scheme: str, silent_port: int) -> None:
    with refused(holdfast.errors.StoreDown, "can't be reached", "is the server up?", never="s3cret"):
        await use_once(f"{scheme}://user:s3cret@127.0.0.1:{free_port()}/0")
    with refused(holdfast.errors.StoreDown, "did not answer within 4 s", never="s3cret"):
        await use_once(f"{scheme}://user:s3cret@127.0.0.1:{silent_port}/0")


@pytest.mark.promise("server.password")
async def test_a_wrong_password_is_said_and_never_shown(postgres: Postgres) -> None:
    with refused(holdfast.errors.ConfigError, "refuses this user or password", never="s3cret"):
        await use_once(postgres.url.replace("tester:tester", "tester:s3cret"))
    with refused(holdfast.errors.ConfigError, "refuses this user or password", never="s3cret"):
        await use_once(postgres.url.replace("tester:tester", "nobody:s3cret"))
    guarded = Valkey("--requirepass", "right")
    try:
        for user in (":s3cret@", "nobody:s3cret@", ""):
            with refused(holdfast.errors.ConfigError, "refuses this user or password", never="s3cret"):
                await use_once(guarded.url.replace("127.0.0.1", f"{user}127.0.0.1"))
        await use_once(guarded.url.replace("127.0.0.1", ":right@127.0.0.1"))
        shown = holdfast.open_store(guarded.url.replace("127.0.0.1", "u:right@127.0.0.1"))
        assert "right" not in repr(shown)
        assert "right" not in shown.url
    finally:
        guarded.close()


@pytest.mark.promise("server.database")
async def test_a_database_that_does_not_exist(postgres: Postgres, valkey: Valkey) -> None:
    with refused(holdfast.errors.ConfigError, '"nowhere" does not exist', "create the database"):
        await use_once(postgres.url.replace("/holdfast", "/nowhere"))
    with refused(holdfast.errors.ConfigError, "DB index is out of range", "/0"):
        await use_once(f"{valkey.url}/99")


@pytest.mark.promise("server.rights")
async def test_a_user_without_rights_is_told_which_sql_to_run(postgres: Postgres) -> None:
    name = f"t{secrets.token_hex(4)}"
    postgres.psql(f"CREATE DATABASE {name}")
    postgres.psql(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'")
    url = f"postgresql://{name}:pw@127.0.0.1:{postgres.port}/{name}"
    with refused(
        holdfast.errors.ConfigError,
        "may not create",
        f'GRANT CREATE, USAGE ON SCHEMA "public" TO "{name}";',
        never="pw@",
    ):
        await use_once(url)
    postgres.psql(f'GRANT CREATE, USAGE ON SCHEMA "public" TO "{name}";', database=name)
    await use_once(url)
    postgres.psql(f'REVOKE CREATE ON SCHEMA "public" FROM "{name}";', database=name)
    await use_once(url)  # once the tables are there, no such right is needed
    reader = f"{name}r"
    postgres.psql(f"CREATE ROLE {reader} LOGIN PASSWORD 'pw'; GRANT SELECT ON holdfast_meta TO {reader}", database=name)
    with refused(holdfast.errors.ConfigError, "permission denied", "SELECT, INSERT, UPDATE and DELETE"):
        await use_once(f"postgresql://{reader}:pw@127.0.0.1:{postgres.port}/{name}")


@pytest.mark.promise("server.rights")
async def test_a_redis_user_without_rights_is_told_which_it_needs(valkey: Valkey) -> None:
    limited = Valkey()
    try:
        async with holdfast.open_store(limited.url) as store:
            await store._pool.command("ACL", "SETUSER", "limited", "on", ">pw", "~other*", "+@all")  # type: ignore[attr-defined]
        with refused(holdfast.errors.ConfigError, "~holdfast*"):
            await use_once(limited.url.replace("127.0.0.1", "limited:pw@127.0.0.1"))
        async with holdfast.open_store(limited.url) as store:
            await store._pool.command("ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels")  # type: ignore[attr-defined]
        failures: list[object] = []
        mute = limited.url.replace("127.0.0.1", "mute:pw@127.0.0.1")
        async with holdfast.open_store(mute, on_event=failures.append) as store:
            with refused(holdfast.errors.ConfigError, "&holdfast*"):
                async with store.listen("t"):
                    pass
            assert await store.count() == 0
        assert len(failures) < 10, "a refused listener must not try again and again"
    finally:
        limited.close()


@pytest.mark.promise("server.tls")
async def test_tls_where_the_server_has_none(postgres: Postgres, valkey: Valkey) -> None:
    with refused(holdfast.errors.ConfigError, "TLS with", "sslmode"):
        await use_once(f"{postgres.url}?sslmode=require")
    with refused(holdfast.errors.StoreDown, "did not answer", "does it speak TLS"):
        await use_once(valkey.url.replace("redis://", "rediss://"))


@pytest.mark.promise("server.tls")
async def test_a_certificate_that_nobody_vouches_for(tmp_path: Path) -> None:
    """The wheels' servers are built without TLS, so the handshake is made by a server of a few lines."""
    context = _self_signed(tmp_path)
    (tmp_path / "other").mkdir()
    _self_signed(tmp_path / "other")

    async def handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError):
            if (await reader.readexactly(1)) == b"\x00":  # PostgreSQL asks first; Redis begins with the handshake
                await reader.readexactly(7)
                writer.write(b"S")
                await writer.start_tls(context)
        writer.close()

    async with await asyncio.start_server(handshake, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with refused(holdfast.errors.ConfigError, "TLS with", "certificate verify failed"):
            await use_once(
                f"postgresql://u:p@127.0.0.1:{port}/x?sslmode=verify-full&sslrootcert={tmp_path}/other/both.pem"
            )
    async with await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        with refused(holdfast.errors.ConfigError, "TLS with", "certificate verify failed"):
            await use_once(f"rediss://127.0.0.1:{port}")


def _self_signed(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "both.pem").write_bytes(made.sign(key, SHA256()).public_bytes(Encoding.PEM) + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    return context


@pytest.mark.promise("server.version")
async def test_a_server_too_old(postgres: Postgres, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_store, "OLDEST", 99)
    with refused(holdfast.errors.ConfigError, "runs PostgreSQL 18", "needs 99 or newer"):
        await use_once(postgres.url)
    monkeypatch.setattr(redis_store, "OLDEST", (99, 1))
    with refused(holdfast.errors.ConfigError, "runs Redis", "needs 99.1 or newer"):
        await use_once(valkey.url)


@pytest.mark.promise("server.mode")
async def test_clusters_and_replicas_are_refused(valkey: Valkey) -> None:
    cluster = Valkey("--cluster-enabled", "yes")
    try:
        with refused(holdfast.errors.ConfigError, "is a cluster", "single primary"):
            await use_once(cluster.url)
    finally:
        cluster.close()
    replica = Valkey("--replicaof", f"127.0.0.1 {valkey.port}")
    try:
        with refused(holdfast.errors.ConfigError, "is a replica", "127.0.0.1"):
            await use_once(replica.url)
    finally:
        replica.close()


@pytest.mark.promise("server.settings")
async def test_settings_that_lose_records_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    careless = Valkey(aof=False, eviction="allkeys-lru")
    seen: list[object] = []
    try:
        with caplog.at_level(logging.WARNING, "holdfast"):
            await use_once(careless.url, on_event=seen.append)
            await use_once(careless.url)
    finally:
        careless.close()
    warned = [event for event in seen if isinstance(event, events.StoreWarned)]
    assert [event.remedy for event in warned] == ["set maxmemory-policy noeviction", "set appendonly yes"]
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "allkeys-lru" in texts[0]
    assert "append-only" in texts[1]
