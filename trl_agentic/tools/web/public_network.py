"""
Connections to the public internet alone: no address of this machine, of its network or of its cloud provider.

A name is resolved once, all of its addresses are checked, and the connection is made to an address that was checked.
A name that changes its address between the check and the connection (DNS rebinding) therefore gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import httpcore

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# Special-purpose blocks of IANA's registries, written out: `is_global` of the standard library changed within 3.11.
_CLOSED_V4 = [
    ipaddress.IPv4Network(block)
    for block in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT, and metadata services of some clouds
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a public address that is the host's own service inside Azure
        "169.254.0.0/16",  # link-local, and metadata services of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
# Outside it lie loopback, link-local, unique local, multicast, IPv4-mapped and NAT64 addresses.
_OPEN_V6 = ipaddress.IPv6Network("2000::/3")
_CLOSED_V6 = [
    ipaddress.IPv6Network(block)
    for block in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which holds any IPv4 address
        "3fff::/20",  # documentation
    )
]


class RefusedAddressError(OSError):
    """A connection to an address that is not public was asked for."""


def is_public(address: IPAddress) -> bool:
    """
    Whether an address belongs to some host on the public internet.

    Addresses that wrap an IPv4 address (IPv4-mapped, NAT64, 6to4, Teredo) do not count as public, whatever they wrap.

    Args:
        address (`ipaddress.IPv4Address` or `ipaddress.IPv6Address`):
            The address.

    Returns:
        `bool`:
            `False` for private, loopback, link-local, multicast, reserved and unspecified addresses.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in block for block in _CLOSED_V4)
    return address in _OPEN_V6 and not any(address in block for block in _CLOSED_V6)


def system_addresses(host: str) -> list[str]:
    """
    Resolve a name as this machine does.

    Args:
        host (`str`):
            The name.

    Returns:
        `list[str]`:
            Its addresses, in the order in which they should be tried.

    Raises:
        OSError: If there are none.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class PublicNetwork(httpcore.NetworkBackend):
    """
    Makes TCP connections to public addresses.

    Args:
        network (`httpcore.NetworkBackend`, *optional*):
            Connects to an address; sockets by default.
        resolve (`Callable[[str], Sequence[str]]`, *optional*, defaults to [`system_addresses`]):
            From a name to its addresses.
        private_hosts (`Collection[str]`, *optional*, defaults to `()`):
            Names and addresses, as they stand in a URL, that may be private.

    Raises:
        TypeError: If `private_hosts` is a single text.
    """

    def __init__(
        self,
        network: httpcore.NetworkBackend | None = None,
        resolve: Callable[[str], Sequence[str]] = system_addresses,
        private_hosts: Collection[str] = (),
    ):
        if isinstance(private_hosts, str):  # its letters would be taken for hosts
            raise TypeError(f"private_hosts must be a list of hosts; pass [{private_hosts!r}].")
        self._network = httpcore.SyncBackend() if network is None else network
        self._resolve = resolve
        self._private_hosts = {plain_host(host) for host in private_hosts}

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """
        Connect to one of the addresses of a host.

        Raises:
            RefusedAddressError: If any of them is not public.
            httpcore.ConnectError: If the name has no address, or none of them answers.
            httpcore.ConnectTimeout: If this takes longer than `timeout` seconds.
        """
        deadline = time.monotonic() + (60.0 if timeout is None else timeout)
        addresses = self._checked(host, self._addresses(host, deadline))
        for number, address in enumerate(addresses, start=1):
            share = (deadline - time.monotonic()) / (len(addresses) - number + 1)
            if share <= 0:
                break
            try:
                stream = self._network.connect_tcp(str(address), port, share, local_address, socket_options)
                return self._foreign(host, address, stream)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise httpcore.ConnectTimeout(f"{host} does not answer")

    def _foreign(self, host: str, address: IPAddress, stream: httpcore.NetworkStream) -> httpcore.NetworkStream:
        """The connection, unless it leads to this machine, which may have a public address of its own."""
        own = stream.get_extra_info("client_addr")  # from an address of one's own, one connects to it from itself
        if own is None or ipaddress.ip_address(own[0]) != address or plain_host(host) in self._private_hosts:
            return stream
        stream.close()
        raise RefusedAddressError(f"{host} has the address {address}, which is this machine's own.")

    def _addresses(self, host: str, deadline: float) -> list[IPAddress]:
        """What a host resolves to; an address is its own."""
        try:
            return [ipaddress.ip_address(host)]
        except ValueError:
            found = _within(lambda: self._resolve(host), deadline)
        try:
            return [ipaddress.ip_address(address) for address in found]
        except ValueError as error:
            raise httpcore.ConnectError(f"{host} has an address that can not be read: {error}") from error

    def _checked(self, host: str, addresses: list[IPAddress]) -> list[IPAddress]:
        if not addresses:
            raise httpcore.ConnectError(f"{host} has no address")
        if plain_host(host) in self._private_hosts:
            return addresses
        for address in addresses:
            if not is_public(address):
                raise RefusedAddressError(f"{host} has the address {address}, which is not on the public internet.")
        return addresses


def plain_host(host: str) -> str:
    """A host in the form in which two are compared: `"Wiki.Corp."` is `"wiki.corp"`, `"[::1]"` is `"::1"`."""
    return host.strip("[]").rstrip(".").lower()


def _within(resolve: Callable[[], Sequence[str]], deadline: float) -> Sequence[str]:
    """Resolve in a thread of its own: a resolver takes as long as it likes, and can not be interrupted."""
    found: list[Sequence[str]] = []
    failures: list[str] = []

    def run() -> None:
        try:
            found.append(resolve())
        except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
            failures.append(str(error))

    thread = threading.Thread(target=run, name="trl-agentic-resolver", daemon=True)
    thread.start()
    thread.join(max(deadline - time.monotonic(), 0.0))
    if thread.is_alive():
        raise httpcore.ConnectTimeout("the name was not resolved in time")
    if not found:
        raise httpcore.ConnectError(f"the name could not be resolved: {''.join(failures) or 'the resolver failed'}")
    return found[0]
