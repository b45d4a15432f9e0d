"""What lies between the engine that prefills and the one that decodes: who is whom, and pages on their way."""

from collections.abc import Callable, Mapping
from functools import partial

from control_plane import Role
from control_plane.messages import Bootstrapped, Event, ExecutionPlan
from control_plane.messages.columns import view
from data_plane.ops.remote import MakeRemote
from data_plane.transfer.rendezvous import Rendezvous, Side
from tools.simulate.calendar import Calendar
from tools.simulate.weather import Weather


class Link:
    """A rendezvous in virtual time: news and pages take as long as the weather says, pages one after the other.

    A prompt is prefilled when the other engine has room for it and no earlier. Otherwise each could wait for what the
    other holds: the one for a prompt whose turn is later there, the other to get rid of one that has no place yet.
    """

    def __init__(self, calendar: Calendar, weather: Weather, *, tell: Callable[[Role, Event], None]) -> None:
        self.rendezvous = Rendezvous(wake=self._wake, wrap=weather.wrap_pages)
        self._calendar = calendar
        self._weather = weather
        self._tell = tell
        self._prefill_keys: dict[int, int] = {}
        self._is_moving = False

    def remote(self, role: Role) -> MakeRemote:
        """What the device of that engine is built with."""
        return self.rendezvous.prefill_end if role is Role.PREFILL else self.rendezvous.decode_end

    def introduce(self, keys: Mapping[Role, int]) -> None:
        """A request entered on both engines."""
        self.rendezvous.pair(prefill_key=keys[Role.PREFILL], decode_key=keys[Role.DECODE])
        self._prefill_keys[keys[Role.DECODE]] = keys[Role.PREFILL]
        self._tell_later(Role.DECODE, Bootstrapped(keys[Role.DECODE]))

    def admitted(self, plan: ExecutionPlan) -> None:
        """The decoding engine has planned: what it has room for now may be prefilled."""
        if plan.remote_prefill is not None:
            for key in view(plan.remote_prefill.keys).tolist():
                self._tell_later(Role.PREFILL, Bootstrapped(self._prefill_keys.pop(key)))

    def give_up(self, role: Role, key: int, message: str) -> None:
        """A request ended on one side."""
        self.rendezvous.give_up(Side(role.value), key, message)

    def _tell_later(self, role: Role, event: Event) -> None:
        self._later(partial(self._tell, role, event))

    def _later(self, happening: Callable[[], None]) -> None:
        self._calendar.enter(self._calendar.now + self._weather.transfer_rounds, happening)

    def _wake(self) -> None:
        """There may be a page to send."""
        if not self._is_moving and self.rendezvous.running:
            self._is_moving = True
            self._later(self._move)

    def _move(self) -> None:
        """One page arrives."""
        self._is_moving = False
        self.rendezvous.step()
        self._wake()
