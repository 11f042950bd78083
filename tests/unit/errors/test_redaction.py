"""What `redact` takes out of URLs and texts, of every class there is, and what it leaves."""

from __future__ import annotations

import base64
import json
import logging
from urllib.parse import quote, quote_plus, unquote

import pytest

import torchdata_ais.store.transport.pools  # noqa: F401 - it puts the filter on the loggers of urllib3
from torchdata_ais.errors import AISError, NotFoundError, redaction
from torchdata_ais.errors.redaction import RedactingFilter, clean, hide, quiet, redact, redact_text
from torchdata_ais.urls import parse_url

pytestmark = pytest.mark.usefixtures("no_known_secrets")

S = "s3cr3tVALUE"
LONG = "s3cr3tVALUEs3cr3tVALUE"

SIGNED = {
    "AWS 4": f"https://b.s3.amazonaws.com/k.tar?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={S}%2F20260101"
    f"&X-Amz-Date=20260101T000000Z&X-Amz-Expires=60&X-Amz-Security-Token={S}&X-Amz-Signature={S}",
    "AWS 2": f"https://b.s3.amazonaws.com/k.tar?AWSAccessKeyId={S}&Expires=1&Signature={S}%3D",
    "Google 4": f"https://storage.googleapis.com/b/o?X-Goog-Credential={S}&X-Goog-Signature={S}",
    "Google 2": f"https://storage.googleapis.com/b/o?GoogleAccessId={S}%40x.com&Expires=1&Signature={S}",
    "Google key": f"https://www.googleapis.com/b/o?alt=media&key={S}",
    "Azure": f"https://a.blob.core.windows.net/c/b.tar?sv=2024-11-04&sp=r&se=2030-01-01T00%3A00%3A00Z&sig={S}%3D",
    "CloudFront": f"https://d1.cloudfront.net/x.tar?Expires=1&Signature={S}&Key-Pair-Id={S}",
    "Akamai": f"https://a.net/x.tar?hdnts=exp=1~acl=/*~hmac={S}",
    "Akamai, in the path": f"https://a.net/hdnea=exp=1~acl=*~hmac={S}/x.tar",
    "Alibaba": f"https://b.oss.com/x?OSSAccessKeyId={S}&Signature={S}&security-token={S}",
    "Alibaba 4": f"https://b.oss.com/x?x-oss-credential={S}&x-oss-signature={S}",
    "Tencent": f"https://b.myqcloud.com/x?q-sign-algorithm=sha1&q-ak={S}&q-signature={S}&x-cos-security-token={S}",
    "Huawei": f"https://b.obs.com/x?AccessKeyId={S}&Expires=1&Signature={S}",
    "Baidu": f"https://b.bcebos.com/x?authorization=bce-auth-v1%2F{S}",
    "Volcengine": f"https://b.tos.com/x?X-Tos-Credential={S}&X-Tos-Signature={S}",
    "Qiniu": f"https://b.qiniu.com/x?e=1&token={S}:abc",
    "Backblaze": f"https://f.backblazeb2.com/file/b/x?Authorization={S}",
    "Oracle": f"https://objectstorage.r.oraclecloud.com/p/{LONG}/n/ns/b/bucket/o/x.tar",
    "Swift": f"https://h/v1/AUTH_a/c/o?temp_url_sig={S}&temp_url_expires=1",
    "Dropbox": f"https://www.dropbox.com/s/x.tar?rlkey={S}&dl=1",
    "SharePoint": f"https://h/x?tempauth={S}&authkey={S}",
    "Cloudflare": f"https://h/x?verify=1-{S}",
    "nginx": f"https://h/x?md5={S}&expires=1",
    "OAuth": f"https://h/x?access_token={S}&code={S}",
    "a token alone": f"https://h/x.tar?{LONG}",
    "fragment": f"https://h/x.tar#access_token={S}&token_type=bearer",
    "session": f"https://h/x.tar;jsessionid={S}?a=b",
    "words": "https://h/x?"
    + "&".join(
        f"{n}={S}"
        for n in ["auth", "jwt", "password", "passwd", "pwd", "secret", "apikey", "api_key", "pass"]
    ),
}

BROKEN = [
    f"htps://me:{S}@h/s.tar",
    f"ais:///?token={S}",
    f"http://?token={S}",
    f"ftp://me:{S}@h/",
    f"s3://me:{S}@b/k",
    f"http://me%3A{S}%40h/x",
    f"http://me:p@{S}@h/x",
    f"http://me:pa/{S}@h/x",
    f"http://me:pa#{S}@h/x",
    f"http://me:pa?{S}@h",
    f"http://me:pass {S}@h/x",
    f"http://me:{S}",
    f"http:/me:{S}@h/x",
    f"//me:{S}@h/x",
    f"http//me:{S}@h/x",
    f"me:{S}@h",
    f"me:{S}@h:80/v1",
    f"http://{S}@h/x",
    f"http://h\\me:{S}@i/x",
    f"http://me:{S}@[::1]:80/x",
    f"http://h/x?a=b?token={S}",
    f"http://h/x&token={S}",
    f"http://h/x?%73%69g={S}",
    f"http://h/x?sig=ab#{S}",
    f'http://h/x?sig=ab"{S}',
    f"http://h/x?sig=ab {S}",
    f"http://h/x?SIG={S}",
    f"http://h/?token={S}\n",
    "http://h/x?url=" + quote(f"http://me:{S}@i/", safe=""),
    "http://h/x?etl_args=" + quote(json.dumps({"api_key": S})),
    quote(f"http://me:{S}@h/", safe=""),
    f"ais://b/x.tar?token={S}",
]


@pytest.mark.parametrize("url", [*SIGNED.values(), *BROKEN], ids=[*SIGNED, *map(str, range(len(BROKEN)))])
def test_no_secret_is_left_in_a_url_nor_in_a_text_or_an_error_with_it(url):
    for text in (
        redact(url),
        str(NotFoundError.at("gone", url=url)),
        repr(NotFoundError.at("gone", url=url)),
    ):
        assert S not in unquote(text)
        assert redact_text(text) == text, "redacting again changes nothing"
    if not set(url) & set(' "\n'):  # in running text these end a URL
        for text in (
            f"it says {url}: 404",
            f"HTTPPool: Max retries (Caused by E('{url}'))",
            f'<a href="{url}">',
            f"({url})",
        ):
            assert S not in unquote(redact_text(text)), text


@pytest.mark.parametrize(
    "text",
    [
        "ais://bucket/name.tar",
        "ais://@uuid#ns/bucket/obj@x.tar",
        "ais://@#a-long-name-of-a-space/bucket/o.tar",
        "http://h:51080/v1/objects/b/s.tar?provider=ais&etl_name=x&archpath=a/b.jpg",
        "http://[::1]:8080/a@b.tar",
        "http://h/v1/objects/b/x@y.tar?provider=ais&namespace=%40uuid%23ns",
        "ais://a::ais://b",
        "/data/a b/s.tar",
        "http://host:port/v1/objects/bucket/object?provider=ais",
        "Set AIS_AUTHN_TOKEN, or pass cluster=StoreOptions(endpoint, token)",
        "Pass cluster=, or set AIS_ENDPOINT (http://host:51080)",
        "keys='keep', key=lambda",
        "cat@home/img.jpg",
        "the bearer token is missing, use Bearer authentication or Basic authentication",
        "http://h/get?key=a/b.tar",
        "http://h/x?keyword=dog&author=bob&se=1&sv=2&sp=r&st=3&max_tokens=77",
        "file:///C:/x",
        "s3://bucket/key=3/part=4.tar",
        "clip#000000123456789012.jpg",
        "12:30@noon is no address",
        "no answer from 10.0.0.1:51080 for 20 s",
    ],
)
def test_what_is_no_secret_stays(text):
    if "12:30" not in text:  # looks like a login: better hidden
        assert redact_text(text) == text
    if "://" in text and " " not in text:
        assert redact(text) == text


@pytest.mark.parametrize(
    "header",
    [
        f"Authorization: Bearer {S}",
        f"authorization=Bearer%20{S}",
        f"Proxy-Authorization: Basic {base64.b64encode(S.encode()).decode()}",
        f"X-Auth-Token: {S}",
        f'{{"token": "{S}"}}',
        f"{{'password': '{S}'}}",
        f"token={S}",
        "eyJhbGciOi.eyJzdWIi.c2lnbmF0dXJl",
        "AKIAIOSFODNN7EXAMPLE",
        f"Cookie: {S}",
    ],
)
def test_headers_and_tokens_of_known_shape_are_hidden_in_texts(header):
    shown = redact_text(f"the server said: {header}")
    assert S not in shown
    assert "***" in shown
    assert base64.b64encode(S.encode()).decode()[:8] not in shown


def test_a_secret_that_is_known_is_hidden_in_every_form_a_server_quotes_it():
    token = "kn0wn/tok +en=é"
    hide(token)
    raw = token.encode()
    forms = [
        token,
        quote(token, safe=""),
        quote(token, safe="").lower(),
        quote_plus(token),
        json.dumps(token),
        repr(token),
        raw.hex(),
    ]
    forms += [
        base64.b64encode(before + raw + b"!").decode() for before in (b"", b"a", b"ab", b"me:", b"Bearer ")
    ]
    forms += [base64.urlsafe_b64encode(raw).decode()]
    for form in forms:
        assert clean(f"<<{form}>>").count("***") == 1, form
        assert "kn0wn" not in clean(form)
        assert not set(clean(f"<<{form}>>")) & set("+é%"), form


def test_short_and_common_words_are_hidden_only_where_they_stand_alone():
    hide("ab1")
    hide("latest")
    hide("pass1")
    hide("environment")
    assert clean("ab1 latest pass123 pass1 environments") == "ab1 latest pass123 *** environments"
    assert clean("the environment") == "the ***"


def test_control_characters_are_spelled_out_in_errors_and_the_place_stays_exact():
    name = "a\x1b]0;owned\x07\r\x9b\u202e\udcff.jpg"
    error = NotFoundError.at(f"no member {name}", url="ais://b/s.tar", member=name)
    assert "\\x1b]0;owned\\x07\\r\\x9b\\u202e\\udcff" in str(error)
    assert not set(str(error)) & set("\x1b\x07\r\x9b\u202e\udcff")
    assert error.member == name


def test_log_lines_have_neither_secrets_nor_control_characters(caplog):
    caplog.set_level(logging.DEBUG)
    for name in ("torchdata_ais", "urllib3.connectionpool", "urllib3.util.retry"):
        assert any(isinstance(one, RedactingFilter) for one in logging.getLogger(name).filters)
        logging.getLogger(name).warning("GET %s of %r and %s", f"/x?sig={S}", f"http://me:{S}@h", "a\x1b[2J")
    assert S not in caplog.text
    assert "\x1b" not in caplog.text
    assert caplog.text.count("a\\x1b[2J") == 3


def test_causes_that_show_a_secret_are_replaced_by_their_text():
    inner = ValueError(f"no usable http://me:{S}@h")
    outer = OSError("refused")
    outer.__cause__ = inner
    assert S not in f"{quiet(outer)!r}{quiet(inner)!r}"
    assert quiet(outer).__cause__ is None
    harmless = OSError(111, "refused")
    assert quiet(harmless) is harmless


def test_repr_of_a_location_and_errors_of_any_class_are_clean():
    assert S not in repr(parse_url(f"http://me:{S}@h/v1/objects/b/o?provider=ais&token={S}"))

    def classes(kind):
        return [kind, *(one for sub in kind.__subclasses__() for one in classes(sub))]

    for kind in classes(AISError):
        error = kind(f"http://me:{S}@h \x1b[2J")
        assert error.args == ("http://***@h \\x1b[2J",), kind
        assert S not in f"{error!r}{error.__reduce__()!r}"


def test_a_command_of_any_length_is_hidden_at_once():
    assert redact("pipe:" + "a " * (1 << 15)) == f"pipe:{redaction.redact_command(['a'] * (1 << 15))}"
    assert redact("pipe:" + "a " * (1 << 15) + "a") == "pipe:***"
