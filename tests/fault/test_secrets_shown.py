"""Promise 8: whatever goes wrong, no secret is in anything printed, logged, shown by `repr`, pickled or raised."""

from __future__ import annotations

import base64
import contextlib
import copy
import inspect
import logging
import pickle
import traceback
import warnings
from urllib.parse import quote, unquote

import pytest
from aistore.sdk import Client
from helpers.raw_server import RawServer, status, whole
from typer.testing import CliRunner

import torchdata_ais.webdataset as wds
from torchdata_ais import (
    AISFileLoader,
    AISObjectLoader,
    AISSourceLister,
    ShardWriter,
    ais_loader,
    convert,
    draw,
    ensure_etl,
    explain,
    run_dsort,
    state_to_json,
    stats,
)
from torchdata_ais.cli import app
from torchdata_ais.cli.checks import diagnose, lint_shards
from torchdata_ais.jobs.dsort import DsortSpec
from torchdata_ais.store import (
    Retry,
    StoreOptions,
    delete_object,
    head_object,
    list_objects,
    open_blocks,
    put_object,
)
from torchdata_ais.testing import shard_bytes, write_shard

TOKEN = "c4naryTOKEN/+xy=z"
PASSWORD = "c4naryPASSWORD9"
SIGNATURE = "c4narySIGNATURE7"
SHARD = shard_bytes({"a.txt": b"1", "b.txt": b"2"})
QUICK = Retry(attempts=2, backoff=0.01, deadline=5.0)
FORMS = [
    form
    for secret in (TOKEN, PASSWORD, SIGNATURE)
    for form in (
        secret,
        quote(secret, safe=""),
        base64.b64encode(secret.encode()).decode()[:14],
        secret.encode().hex(),
    )
]


def check(*texts: object) -> None:
    for text in map(str, texts):
        found = [
            form for form in FORMS if form.lower() in text.lower() or form.lower() in unquote(text).lower()
        ]
        assert not found, f"{found} in {text[:2000]}"


def check_error(error: BaseException) -> None:
    """Everything that can be seen of an error: text, attributes, pickle, traceback's last part, causes."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        check(one, repr(one), one.args, vars(one), getattr(one, "place", ""), getattr(one, "__notes__", ""))
        check("".join(traceback.format_exception_only(type(one), one)))
        with contextlib.suppress(TypeError, pickle.PicklingError, AttributeError):
            check(pickle.dumps(one).decode("latin-1"), repr(copy.copy(one)))
        one = one.__cause__ or one.__context__


def quoting(code: int):
    """A server that quotes back what it was sent, in every form."""

    def script(request):
        sent = request.headers.get("authorization", "")
        word = sent.partition(" ")[2]
        encoded = base64.b64encode(sent.encode()).decode()
        body = f'{{"status":{code},"message":"no {sent} ({word}) {quote(word, safe="")} {encoded} {request.target}"}}'
        status(code, f"Ais-Error: {sent}", "Retry-After: 0", body=body.encode())(request)
        return False

    return script


def breaking(request):
    request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nshort")
    return False


def garbage(request):
    request.send(request.headers.get("authorization", "").encode() + b"\r\n\r\n")
    return False


def elsewhere(request):
    word = request.headers.get("authorization", "").partition(" ")[2]
    status(301, f"Location: ftp://me:{PASSWORD}@h/?token={quote(word)}&sig={SIGNATURE}")(request)
    return False


def not_a_tar(request):
    whole(b"<html>sign in" * 40)(request)


SERVERS = {
    "401": quoting(401),
    "404": quoting(404),
    "500": quoting(500),
    "400": quoting(400),
    "broken": breaking,
    "garbage": garbage,
    "redirect": elsewhere,
    "not a tar": not_a_tar,
    "down": None,
    "fine": whole(SHARD),
}


@pytest.fixture(params=SERVERS)
def server(request):
    script = SERVERS[request.param]
    if script is None:
        yield "127.0.0.1:9"
        return
    with RawServer(script) as server:
        yield server.endpoint[7:]


def everything(name: str):
    """Yield ways to fail with a token, a login in the endpoint, and a signed URL at the server `name`."""
    plain = f"http://{name}"
    login = f"http://me:{PASSWORD}@{name}"
    signed = (
        f"http://me:{PASSWORD}@{name}/s.tar?X-Amz-Signature={SIGNATURE}&sig={SIGNATURE}&sp=r#jwt={SIGNATURE}"
    )
    for endpoint, token in ((plain, TOKEN), (login, TOKEN), (login, None)):
        options = StoreOptions(endpoint=endpoint, token=token, retry=QUICK, first_byte_timeout=5)
        yield lambda o=options: b"".join(open_blocks("ais://b/s.tar", o))
        yield lambda o=options: list_objects("ais://b/p", options=o)
        yield lambda o=options: head_object("ais://b/s.tar", o)
        yield lambda o=options: put_object("ais://b/s.tar", b"x", o)
        yield lambda o=options: delete_object("ais://b/s.tar", o)
        yield lambda o=options: diagnose(o)
        yield lambda o=options: lint_shards(["ais://b/s.tar"], cluster=o)
        yield lambda o=options: list(AISSourceLister("ais://b/s-{0..1}.tar", cluster=o).load_tar(retry=QUICK))
        yield lambda o=options: list(AISObjectLoader(["ais://b/s.tar"], cluster=o))
        yield lambda o=options: list(
            AISFileLoader(["ais://b/s.tar"], cluster=o, on_error="warn").group_samples()
        )
        yield lambda o=options: list(
            wds.WebDataset(["ais://b/s.tar"], shardshuffle=False, cluster=o, handler=wds.warn_and_stop)
        )
        yield lambda e=endpoint, t=token: convert(
            "ais://b/s.tar", "ais://c/%d.tar", cluster=StoreOptions(endpoint=e, token=t, retry=QUICK)
        )
        yield lambda o=options: write(o)
    for url in (
        signed,
        signed.replace("http:", "htps:"),
        signed.replace(f"@{name}", f"@{name}:x"),
        f"ais:///?token={TOKEN}",
        f"http://?token={TOKEN}",
        f"http://[?token={TOKEN}",
        f"s-{{0..?token={TOKEN}",
        f"ftp://me:{PASSWORD}@h/s.tar",
        f"pipe:curl -H 'Authorization: Bearer {TOKEN}' {plain}/s.tar",
        f"pipe:curl -ume:{PASSWORD} {plain}/s.tar?{SIGNATURE}",
        f"pipe:SECRET={PASSWORD} wget --header=X:{PASSWORD} {plain}/s.tar",
    ):
        options = StoreOptions(retry=QUICK)
        yield lambda u=url, o=options: b"".join(open_blocks(u, o))
        yield lambda u=url, o=options: list_objects(u, options=o)
        yield lambda u=url, o=options: list(AISFileLoader([u], cluster=o, on_error="warn").group_samples())
        yield lambda u=url, o=options: list(wds.WebDataset([u], shardshuffle=False, cluster=o))
        yield lambda u=url, o=options: list(AISObjectLoader([{"url": u}], cluster=o))
        yield lambda u=url, o=options: put_object(u, b"x", o)
    for bad in (
        f"http://me:{PASSWORD}@h:x",
        f"http://me:{PASSWORD}@/",
        f"htps://me:{PASSWORD}@h",
        f"me:{PASSWORD} x@h",
        f"http://h?token={TOKEN}",
    ):
        yield lambda b=bad: StoreOptions(endpoint=b)
        yield lambda b=bad: list(AISSourceLister("ais://b", cluster=b))
        yield lambda b=bad: run_dsort(b, DsortSpec("ais://b/s-{0..1}.tar", "ais://b/n-%d.tar"))
        yield lambda b=bad: ensure_etl(b, "no-change", object)
    for token in (f"{TOKEN}\n{TOKEN}", f"{TOKEN}€"):
        yield lambda t=token: StoreOptions(token=t)
        yield lambda t=token: list_objects(Client(plain, token=t).bucket("b"), options=StoreOptions())
        yield lambda t=token: list_objects(
            Client(plain, token=t).bucket("b").objects(obj_names=["x"]), options=StoreOptions()
        )


def write(options: StoreOptions) -> None:
    with ShardWriter("ais://b/%d.tar", cluster=options) as writer:
        writer.write({"__key__": "a", "txt": "1"})


@pytest.mark.quick(3)
def test_nothing_that_goes_wrong_in_the_library_shows_a_secret(server, caplog, capsys, recwarn):
    caplog.set_level(logging.DEBUG)
    warnings.simplefilter("always")
    count = 0
    for way in everything(server):
        try:
            given = way()
        except Exception as error:
            check_error(error)
        else:
            check(repr(given))
        count += 1
    assert count > 100
    check(caplog.text, *capsys.readouterr(), *(one.message for one in recwarn))
    for record in caplog.records:
        check(record.getMessage(), record.args, record.exc_text)


def test_reprs_samples_states_and_reports_show_no_secret():
    with RawServer(whole(SHARD)) as server:
        name = server.endpoint[7:]
        web = f"http://me:{PASSWORD}@{name}/s.tar?sig={SIGNATURE}"
        endpoint = f"http://me:{PASSWORD}@{name}"
        options = StoreOptions(endpoint=endpoint, token=TOKEN)
        check(repr(options), options, options.endpoint)
        for source in (
            web,
            "ais://b/s-{0..0}.tar",
            f"http://me:{PASSWORD}@{name}/v1/objects/b/s.tar?provider=ais&sig={SIGNATURE}",
        ):
            lister = AISSourceLister(source, cluster=options)
            pipe = lister.load_tar().group_samples()
            check(repr(lister), repr(pipe), pipe._repr_html_(), draw(pipe), explain(pipe))
            samples = list(pipe)
            assert len(samples) == 2
            check(
                samples,
                [sample["__url__"] for sample in samples],
                stats(pipe),
                list(AISSourceLister("ais://b/x-{0..1}.tar", cluster=endpoint)),
            )
            check(
                [path for path, _ in lister.load_tar()],
                [url for url, _ in AISObjectLoader([source], cluster=options)],
            )
            check(
                [
                    sample["__url__"]
                    for sample in wds.WebDataset([source], shardshuffle=False, cluster=options)
                ]
            )
            loader = ais_loader(lister.load_tar().group_samples(), num_workers=0)
            next(iter(loader))
            check(
                repr(loader),
                loader.stats(),
                state_to_json(loader.state_dict()),
                repr(loader.state_dict()),
            )
            loader.close()


COMMANDS = {
    "ls": ["ls", "ais://b/p"],
    "ls --json": ["ls", "ais://b/p", "--json"],
    "inspect": ["inspect", "ais://b/s.tar"],
    "inspect web": ["inspect", "{web}"],
    "inspect --json": ["inspect", "{web}", "--json"],
    "lint": ["lint", "ais://b/s.tar", "{web}"],
    "lint --json": ["lint", "{web}", "--json"],
    "lint --fix": ["lint", "{shard}", "--fix", "ais://b/%d.tar"],
    "bench": ["bench", "{web}", "--seconds", "0.01", "--workers", "0"],
    "put": ["put", "{shard}", "ais://b/s.tar"],
    "put url": ["put", "{shard}", "{login}/v1/objects/b/x"],
    "convert": ["convert", "{web}", "{out}/s-%d.tar"],
    "convert to": ["convert", "{shard}", "ais://b/s-%d.tar"],
    "dsort": ["dsort", "ais://b/s-{{0..1}}.tar", "ais://b/n-%d.tar"],
    "etl init": ["etl", "init", "no-change", "json:loads"],
    "etl ls": ["etl", "ls"],
    "etl run": ["etl", "run", "no-change", "ais://b", "ais://c"],
    "etl logs": ["etl", "logs", "no-change"],
    "etl rm": ["etl", "rm", "no-change"],
    "doctor": ["doctor"],
    "doctor --json": ["doctor", "--json"],
    "bad endpoint": ["ls", "ais://b", "--endpoint", "htps://me:{password}@h"],
    "bad URL": ["ls", "htps://me:{password}@h/?sig={signature}"],
    "demo": ["demo", "--endpoint", "{login}", "--samples", "100", "--epochs", "1", "--workers", "0"],
}


@pytest.mark.ci
@pytest.mark.parametrize("login", [False, True])
def test_no_command_shows_a_secret(server, login, monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    at = f"http://me:{PASSWORD}@{server}" if login else f"http://{server}"
    monkeypatch.setenv("AIS_ENDPOINT", at)
    monkeypatch.setenv("AIS_AUTHN_TOKEN", f"{TOKEN}\n")
    monkeypatch.setattr("torchdata_ais.store.transport.options.Retry.attempts", 1, raising=False)
    made = inspect.unwrap(StoreOptions.__init__)
    quick = tuple(QUICK if isinstance(one, Retry) else one for one in made.__defaults__)
    monkeypatch.setattr(made, "__defaults__", quick)
    words = {
        "web": f"http://me:{PASSWORD}@{server}/s.tar?sig={SIGNATURE}&Signature={SIGNATURE}",
        "login": at,
        "out": tmp_path,
        "shard": write_shard(tmp_path / "own.tar", {"a.txt": b"1"}),
        "password": PASSWORD,
        "signature": SIGNATURE,
    }
    for command in COMMANDS.values():
        for debug in ([], ["--debug"]) if command[0] != "doctor" else ([],):
            result = CliRunner().invoke(app, [*(word.format(**words) for word in command), *debug])
            check(result.output, result.stderr)
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                assert debug, f"{command}: {result.exception!r}"
                check_error(result.exception)
    check(caplog.text)
