"""Fetching pages: which addresses are reached, over which connections, and what comes back."""

import datetime
import gzip
import ipaddress
import ssl
import threading
import time
import zlib

import httpcore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopback_pages import LoopbackPages, head

from trl_agentic.tools.options import TransientToolError
from trl_agentic.tools.web import public_network
from trl_agentic.tools.web.page_fetch import PageError, PageFetcher
from trl_agentic.tools.web.public_network import is_public

PUBLIC = "93.184.216.34"


@pytest.fixture
def server():
    with LoopbackPages() as pages:
        yield pages


def fetcher(server, **options) -> PageFetcher:
    """May read `pages.test`, which is the server."""
    options = {"private_hosts": ["pages.test"], "resolve": lambda host: ["127.0.0.1"]} | options
    return PageFetcher(ports=[server.port], **options)


# Addresses


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.1.2.3",
        "172.31.0.1",
        "192.168.1.1",
        "169.254.169.254",  # metadata of most clouds
        "100.100.100.200",  # of Alibaba's
        "168.63.129.16",  # of Azure
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:93.184.216.34",  # IPv4-mapped
        "::93.184.216.34",  # IPv4-compatible
        "64:ff9b::5db8:d822",  # NAT64
        "64:ff9b:1::1",
        "2002:7f00:1::",  # 6to4 of 127.0.0.1
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",  # Teredo
        "2001:db8::1",
    ],
)
def test_addresses_of_machines_networks_and_tunnels_are_not_public(address):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", [PUBLIC, "8.8.8.8", "172.32.0.1", "2606:2800:220:1:248:1893:25c8:1946"])
def test_addresses_of_the_internet_are_public(address):
    assert is_public(ipaddress.ip_address(address))


@given(st.ip_addresses())
def test_whatever_the_standard_library_calls_private_is_not_public(address):
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert not is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/html,hi",
        "//example.com/",
        "http://",
        "http:///path",
        "http://exa mple.com/",
        "http://a..b/",
        "http://-a.com/",
        "http://" + "a" * 64 + ".com/",
        "http://%31%32%37.0.0.1/",
        "http://[::1",
        "http://example.com:99999/",
        "http://example.com\n.evil/",
        "http://\u2460\u2461\u2466.0.0.1/",  # circled digits
        "http://\uff11\uff12\uff17.0.0.1/",  # wide digits
        "http://\ud800/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://1.2.3.4./",
        "http://example.com/" + "a" * 2_048,
        "",
    ],
)
def test_what_is_no_address_of_a_page_is_refused_before_any_look_up(url):
    def resolve(host):
        raise AssertionError(f"{host} was looked up")

    with pytest.raises(PageError):
        PageFetcher(resolve=resolve).fetch(url)


@pytest.mark.parametrize(
    "url", ["http://user@pages.test/", "http://user:secret@pages.test/", "http://a%40b@pages.test/"]
)
def test_credentials_in_an_address_are_refused_and_not_repeated(url):
    with pytest.raises(PageError, match="holds credentials") as error:
        PageFetcher().fetch(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("port", [22, 25, 6379, 0])
def test_only_ports_of_the_web_are_asked(port):
    with pytest.raises(PageError, match=f"Port {port} of example.com is not allowed. Allowed: 80, 443, 8080, 8443."):
        PageFetcher().fetch(f"http://example.com:{port}/")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254"])
def test_a_private_address_in_the_url_is_refused(host):
    with pytest.raises(PageError, match="is not on the public internet"):
        PageFetcher().fetch(f"http://{host}/")


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST"])
def test_this_machine_is_refused_by_its_name_too(name):
    with pytest.raises(PageError, match="is not on the public internet"):
        PageFetcher().fetch(f"http://{name}/")


def test_a_private_host_that_is_listed_can_be_read_and_its_neighbours_can_not(server):
    server.page("/", "hi")
    assert fetcher(server).fetch(server.url()).content == b"hi"
    assert fetcher(server).fetch(server.url(host="PAGES.test.")).content == b"hi"
    with pytest.raises(PageError, match="127.0.0.1, which is not on the public internet"):
        fetcher(server).fetch(server.url(host="other.test"))
    with pytest.raises(PageError, match="127.0.0.1, which is not on the public internet"):
        fetcher(server).fetch(server.url(host="127.0.0.1"))
    assert len(server.requests) == 2


# Names and connections


class Rerouted(httpcore.SyncBackend):
    """Writes down where a connection is made to, and makes it to the server of the test instead."""

    def __init__(self, *refused: str):
        self.hosts: list[str] = []
        self._refused = refused

    def connect_tcp(self, host, port, *options, **named):
        self.hosts.append(host)
        if host in self._refused:
            raise httpcore.ConnectError("refused")
        return super().connect_tcp("127.0.0.1", port, *options, **named)


def test_a_name_is_looked_up_once_and_the_connection_goes_to_its_address(server):
    server.page("/", "hi")
    looked_up, network = [], Rerouted()
    reader = PageFetcher(ports=[server.port], resolve=lambda host: looked_up.append(host) or [PUBLIC], network=network)
    assert reader.fetch(server.url()).content == b"hi"
    assert looked_up == ["pages.test"] and network.hosts == [PUBLIC]
    assert server.requests[0].headers["Host"] == f"pages.test:{server.port}"


def test_the_next_address_is_tried_when_one_does_not_answer(server):
    server.page("/", "hi")
    network = Rerouted("1.1.1.1")
    reader = PageFetcher(ports=[server.port], resolve=lambda host: ["1.1.1.1", PUBLIC], network=network)
    assert reader.fetch(server.url()).content == b"hi"
    assert network.hosts == ["1.1.1.1", PUBLIC]


@pytest.mark.parametrize("answer", [[], ["no address"]])
def test_a_name_without_a_usable_address_is_an_error(server, answer):
    with pytest.raises(PageError, match="could not be fetched"):
        fetcher(server, resolve=lambda host: answer).fetch(server.url())


def test_a_name_that_does_not_exist_is_an_error(server):
    def resolve(host):
        raise OSError("Name or service not known")

    with pytest.raises(PageError, match="could not be resolved: Name or service not known"):
        fetcher(server, resolve=resolve).fetch(server.url())


def test_a_resolver_that_hangs_does_not_outlive_the_deadline(server):
    release = threading.Event()
    start = time.monotonic()
    with pytest.raises(PageError, match=r"did not send the page within 0\.2 s"):
        fetcher(server, resolve=lambda host: release.wait(60), timeout_s=0.2).fetch(server.url())
    assert time.monotonic() - start < 20
    release.set()


def test_a_public_address_of_this_machine_itself_is_refused(server, monkeypatch):
    monkeypatch.setattr(public_network, "is_public", lambda address: True)  # as if the interface had such an address
    reader = PageFetcher(ports=[server.port], resolve=lambda host: ["127.0.0.1"])
    with pytest.raises(PageError, match=r"has the address 127\.0\.0\.1, which is this machine.s own"):
        reader.fetch(server.url())
    assert server.requests == []


def test_a_closed_port_is_an_error(server):
    with LoopbackPages() as other:
        port = other.port
    with pytest.raises(PageError, match="could not be fetched"):
        PageFetcher(ports=[port], private_hosts=["127.0.0.1"]).fetch(f"http://127.0.0.1:{port}/")


def test_nothing_is_taken_from_the_environment_and_nothing_is_kept_between_calls(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    server.page("/", "hi", Set_Cookie="session=1; Path=/")
    reader = fetcher(server)
    reader.fetch(server.url())
    reader.fetch(server.url())
    assert not any({"Cookie", "Authorization"} & set(request.headers) for request in server.requests)


def certificate(tmp_path, name: str):
    """A certificate for a name, signed by itself, and who trusts it."""
    pytest.importorskip("cryptography", reason="making a certificate needs the package cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + built.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context, ssl.create_default_context(cafile=str(path))


def test_certificates_are_checked_against_the_name_although_the_connection_is_made_by_address(tmp_path):
    tls, trust = certificate(tmp_path, "pages.test")
    names = []
    tls.sni_callback = lambda connection, name, context: names.append(name)
    with LoopbackPages(tls) as server:
        server.page("/", "hi")
        hosts = {"private_hosts": ["pages.test", "other.test"]}
        assert fetcher(server, ssl_context=trust, **hosts).fetch(f"https://pages.test:{server.port}/").content == b"hi"
        with pytest.raises(PageError, match="CERTIFICATE_VERIFY_FAILED"):
            fetcher(server, ssl_context=trust, **hosts).fetch(f"https://other.test:{server.port}/")
        with pytest.raises(PageError, match="CERTIFICATE_VERIFY_FAILED"):  # nobody trusts it by default
            fetcher(server).fetch(f"https://pages.test:{server.port}/")
    assert names == ["pages.test", "other.test", "pages.test"]


# Redirects


def test_redirects_are_followed_and_the_last_address_is_told(server):
    server.send("/a", [head(302, Location="/b?x=1#part", Content_Length=0)])
    server.send("/b?x=1", [head(301, Location="c", Content_Length=0)])
    server.page("/c", "hi")
    page = fetcher(server).fetch(server.url("/a"))
    assert (page.url, page.content) == (server.url("/c"), b"hi")
    assert [request.path for request in server.requests] == ["/a", "/b?x=1", "/c"]


def test_one_redirect_more_than_allowed_is_an_error(server):
    for number in range(4):
        server.send(f"/{number}", [head(302, Location=f"/{number + 1}", Content_Length=0)])
    server.page("/4", "hi")
    assert fetcher(server, max_redirects=4).fetch(server.url("/0")).content == b"hi"
    with pytest.raises(PageError, match="more than 3 times"):
        fetcher(server, max_redirects=3).fetch(server.url("/0"))


@pytest.mark.parametrize("headers", [{}, {"Location": ""}, {"Location": "http://["}, {"Location": "mailto:a@b.c"}])
def test_a_redirect_to_nowhere_is_an_error(server, headers):
    server.send("/", [head(302, Content_Length=0, **headers)])
    with pytest.raises(PageError, match="redirects to a place that can not be read"):
        fetcher(server).fetch(server.url())


# Bodies


def test_an_address_without_a_scheme_is_asked_over_https():
    with pytest.raises(PageError, match="https://example.com/a could not be fetched"):
        PageFetcher(resolve=lambda host: []).fetch(" example.com/a ")


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"hello")),
        ("x-gzip", gzip.compress(b"hello")),
        ("deflate", zlib.compress(b"hello")),
        ("deflate", zlib.compress(b"hello", wbits=-15)),
        ("identity", b"hello"),
    ],
)
def test_a_compressed_body_is_read(server, encoding, body):
    server.page("/", body, Content_Encoding=encoding)
    page = fetcher(server).fetch(server.url())
    assert (page.content, page.is_complete) == (b"hello", True)
    assert server.requests[0].headers["Accept-Encoding"] == "gzip, deflate"


def test_a_chunked_body_is_put_together(server):
    server.send(
        "/", [head(Content_Type="text/plain", Transfer_Encoding="chunked"), b"3\r\nhel\r\n", b"2\r\nlo\r\n0\r\n\r\n"]
    )
    assert fetcher(server).fetch(server.url()).content == b"hello"


def test_a_body_that_breaks_off_is_told_from_one_that_is_too_long(server):
    server.send("/", [head(Content_Type="text/plain", Content_Length=10), b"0123"])
    page = fetcher(server).fetch(server.url())
    assert (page.content, page.is_complete, page.broke_off) == (b"0123", False, True)


def test_of_a_body_that_is_too_long_the_head_is_kept(server):
    server.page("/", b"0123456789")
    page = fetcher(server, max_bytes=4).fetch(server.url())
    assert (page.content, page.is_complete, page.broke_off) == (b"0123", False, False)
    page = fetcher(server, max_bytes=10).fetch(server.url())
    assert (page.content, page.is_complete) == (b"0123456789", True)


@pytest.mark.parametrize(
    "kind", ["image/png", "video/mp4", "application/zip", "application/vnd.ms-excel", "font/woff2"]
)
def test_what_is_no_page_is_refused_before_its_body_is_read(server, kind):
    server.send("/", [head(Content_Type=kind, Content_Length=10**12)])
    with pytest.raises(PageError, match=f"is {kind}, not a page with text"):
        fetcher(server).fetch(server.url())


@pytest.mark.parametrize(
    "kind",
    ["text/html; charset=utf-8", "TEXT/Plain", "application/pdf", "application/ld+json", "application/rss+xml", ""],
)
def test_what_may_hold_text_is_read(server, kind):
    server.page("/", "hi", kind)
    page = fetcher(server).fetch(server.url())
    assert (page.content, page.content_type) == (b"hi", kind)


@pytest.mark.parametrize(
    ("status", "phrase"), [(404, "404 Not Found"), (403, "403 Forbidden"), (500, "500 Internal"), (799, "799")]
)
def test_an_error_of_the_server_is_told(server, status, phrase):
    server.page("/", "<script>long excuses</script>", status=status)
    with pytest.raises(PageError, match=f"the server answered {phrase}"):
        fetcher(server).fetch(server.url())


@pytest.mark.parametrize(
    ("status", "header", "seconds"), [(429, "7", 7.0), (503, "soon", None), (502, "99999999999", None)]
)
def test_a_busy_server_is_worth_another_attempt(server, status, header, seconds):
    server.page("/", "", status=status, Retry_After=header)
    with pytest.raises(TransientToolError, match=f"the server answered {status}") as error:
        fetcher(server).fetch(server.url())
    assert error.value.retry_after_s == seconds


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"max_bytes": 0}, {"max_redirects": -1}])
def test_limits_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        PageFetcher(**options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"private_hosts": "wiki.internal"}, r"pass \['wiki.internal'\]"),
        ({"ports": ["80", "443"]}, r"such as \[80, 443\]"),
        ({"ports": "443"}, r"such as \[80, 443\]"),
    ],
)
def test_hosts_and_ports_of_another_type_are_refused(settings, message):
    with pytest.raises(TypeError, match=message):
        PageFetcher(**settings)
