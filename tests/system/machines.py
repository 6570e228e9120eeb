"""Simulated machines, each in kernel namespaces with a host name, a network and a cable that can be cut.

All are connected to one bridge in a namespace of its own (`Network`), where a server can run. The network of this machine is
not touched, and the namespaces end with the processes that hold them. It needs root.
"""

from __future__ import annotations

import os
import subprocess

NET = "10.99.0"


def why_not() -> str | None:
    """Return why there can be no such machines here, or None."""
    if os.geteuid() != 0:
        return "namespaces need root"
    try:
        with Network() as network:
            network.machine("trial")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"this kernel makes no such machines: {error} {getattr(error, 'stderr', '')}"
    return None


class Namespace:
    """A network namespace and host name, held by a process that does nothing. `under` is the command that runs a program in it."""

    def __init__(self, number: int, name: str) -> None:
        self.address = f"{NET}.{number}"
        self.hardware = f"02:00:00:00:00:{number:02x}"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "setpriv", "--pdeathsig=KILL", "sh", "-c", "echo; exec sleep infinity"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        self.pid = self._holder.pid
        self.under = ["nsenter", f"--target={self.pid}", "--net", "--uts", "--"]
        self.do("hostname", name)
        self.do("ip", "link", "set", "lo", "up")

    def do(self, *arguments: str) -> None:
        subprocess.run([*self.under, *arguments], check=True, capture_output=True, text=True)

    def knows(self, device: str, other: Namespace) -> None:
        """Enter the other's hardware address for good: packets to a machine behind a cut cable are lost without any error."""
        self.do("ip", "neigh", "replace", other.address, "lladdr", other.hardware, "dev", device, "nud", "permanent")

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        if self._holder.stdout is not None:
            self._holder.stdout.close()


class Machine(Namespace):
    def __init__(self, network: Network, number: int, name: str) -> None:
        super().__init__(number, name)
        self.name = name
        self._network, self._port = network, f"port{number}"
        network.do("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        self.do("ip", "link", "set", "eth0", "address", self.hardware)
        self.do("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.do("ip", "link", "set", "eth0", "up")
        network.do("ip", "link", "set", self._port, "master", "lan", "up")
        self.joined = True
        self.knows("eth0", network)
        network.knows("lan", self)

    def cut(self) -> None:
        """Drop every packet from and to the machine from now on."""
        self._network.do("ip", "link", "set", self._port, "down")
        self.joined = False

    def join(self) -> None:
        self._network.do("ip", "link", "set", self._port, "up")
        self.joined = True


class Network(Namespace):
    """The namespace of the server and of the bridge to which the machines are connected."""

    def __init__(self) -> None:
        super().__init__(1, "server")
        self._machines: list[Machine] = []
        # Without spanning tree a port forwards at once when it comes up.
        self.do("ip", "link", "add", "name", "lan", "address", self.hardware, "type", "bridge", "stp_state", "0")
        self.do("ip", "addr", "add", f"{self.address}/24", "dev", "lan")
        self.do("ip", "link", "set", "lan", "up")

    def machine(self, name: str) -> Machine:
        machine = Machine(self, len(self._machines) + 2, name)
        self._machines.append(machine)
        return machine

    def close(self) -> None:
        for machine in self._machines:
            machine.close()
        super().close()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
