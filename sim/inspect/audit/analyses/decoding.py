"""Messages of an analysis: those of the session, without the envelopes of a round."""

from typing import Final

from deltafl.secagg import DecodeError
from deltafl.secagg import wire as session_wire
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.prefixes import scan
from deltafl.sim.inspect.audit.seen import Content, Decoder

_KIND: Final = 1  # field of a message, after the version


class AnalysisDecoder(Decoder):
    """Decodes the messages of an analysis, in the order in which they passed."""

    def _sent_content(self, data: bytes, *, whole: bool) -> Content:
        if not whole:
            raise DecodeError("an analysis is recorded in full, and this is a part")
        prefix = scan(data)
        if prefix is None or len(prefix.fields) <= _KIND or prefix.fields[_KIND] != Kind.OPEN:
            return self._session_content(data, whole=whole)
        opened = session_wire.decode_open(data)
        self.params[opened.params.tag] = opened.params
        return Content(Kind.OPEN, opened.params.tag, message=opened)
