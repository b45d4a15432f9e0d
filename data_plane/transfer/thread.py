"""A thread that copies pages whenever there are any."""

from queue import SimpleQueue
from threading import Thread

from data_plane.transfer.ends import WrapPages
from data_plane.transfer.rendezvous import Rendezvous


class TransferThread:
    """A rendezvous whose transfers go on by themselves. Close it before the devices."""

    def __init__(self, *, wrap: WrapPages = lambda inner: inner) -> None:
        """`wrap` is the rendezvous's."""
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self.rendezvous = Rendezvous(wake=lambda: self._calls.put(True), wrap=wrap)
        # A daemon: a process that dies without closing its devices must not hang in the interpreter's exit.
        self._thread = Thread(target=self._work, name="transfers", daemon=True)
        self._thread.start()

    def close(self, message: str = "the transfers were closed") -> None:
        """Give up what is paired, and end the thread when its page is copied. A second call does nothing.

        Not to be called from a device's `deliver`, which runs on the thread that this waits for.
        """
        self.rendezvous.close(message)
        self._calls.put(False)
        self._thread.join()

    def _work(self) -> None:
        while self._calls.get():
            while self.rendezvous.step():
                pass
