"""``anchorline doctor --live``: a proxy that tells of each fault when it happens, and writes nothing down."""

from __future__ import annotations

import time

import click

from anchorline.bench.client import server_url
from anchorline.bench.trace import TraceRequest
from anchorline.cli.doctor_counting import Counting
from anchorline.cli.doctor_table import fault_table
from anchorline.cli.logs import set_up_logging
from anchorline.cli.proxy import calls, left_out, pass_on, proxy_socket
from anchorline.cli.tables import show_paragraph, show_table
from anchorline.config import ServerConfig
from anchorline.doctor.comparison import Kind
from anchorline.doctor.findings import Finding
from anchorline.doctor.live import LiveDiagnosis
from anchorline.doctor.wording import REMEDIES, TITLES, cost, sentence
from anchorline.errors import RequestError
from anchorline.record.recorder import RecordedCall, Recorder

UNREADABLE = "the doctor cannot read it"
INDENT = " " * 3
FLAG = "--live"
PATIENCE_SECONDS = 2.0
"""At the end calls are still read for that long, and the last of them may take as long again."""


def run_live(upstream: str, *, port: int, counting: Counting) -> None:
    """Pass calls on and tell findings until SIGTERM or SIGINT, then sum up. Raises ConfigError."""
    set_up_logging("warning", "text")
    url, config = server_url(upstream, flag=FLAG), ServerConfig(port=port)
    teller = Teller(LiveDiagnosis(count_tokens=counting.tokens, order=counting.order))
    with proxy_socket(url, config, flag=FLAG) as listener:
        recorder = Recorder(teller.take, clock=time.monotonic)
        facts = {"counting": counting.words}
        through = pass_on(url, recorder, config, listener=listener, facts=facts, patience_seconds=PATIENCE_SECONDS)
    teller.sum_up(recorder, through=through)


class Teller:
    """Tells what is found, on stdout: each fault with its first remedy, and sums at the end."""

    def __init__(self, diagnosis: LiveDiagnosis) -> None:
        self._diagnosis = diagnosis
        self._told: set[Kind] = set()

    def take(self, call: RecordedCall) -> str | None:
        """Read a call, and tell what breaks its prefix. Gives the reason when it cannot be read."""
        request = TraceRequest(
            path=call.path, body=call.body, arrival_seconds=call.arrival_seconds, end_seconds=call.end_seconds
        )
        try:
            findings = self._diagnosis.take(request)
        except RequestError as error:
            show_paragraph(f"A call was left out: {error}")
            return UNREADABLE
        for finding in findings:
            if finding.lost_tokens or finding.kind not in self._told:
                self._tell(finding)
        return None

    def sum_up(self, recorder: Recorder, *, through: bool) -> None:
        """All that was found; ``recorder`` knows what was left out.

        Where it is not ``through``, the diagnosis is in the middle of a call and has no sums.
        """
        click.echo(f"\n{calls(recorder.taken)} read")
        for line in left_out(recorder):
            click.echo(line)
        if not through:
            click.echo("There are no sums, since one call was still being read.")
            return
        totals = self._diagnosis.totals()
        if not totals:
            click.echo("Nothing was found that breaks a prefix.")
            return
        show_table(fault_table((total.kind, total.requests, total.lost_tokens) for total in totals))
        for total in totals:
            if total.kind not in self._told:
                show_paragraph(f"{TITLES[total.kind].capitalize()}: {REMEDIES[total.kind]}")

    def _tell(self, finding: Finding) -> None:
        show_paragraph(f"{sentence(finding)} {cost(finding)}")
        if finding.kind not in self._told:
            self._told.add(finding.kind)
            show_paragraph(f"Remedy: {REMEDIES[finding.kind]}", indent=INDENT)
