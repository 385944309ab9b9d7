"""The figures of a Vessel for Prometheus, read from the parts when somebody asks; nothing is counted here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from lychd.graph import Vessel
    from runs.broker.lanes import LaneStats


class _Figures(Collector):
    def __init__(self, vessel: Vessel, lanes: Mapping[str, LaneStats]) -> None:
        self._vessel = vessel
        self._stats = lanes

    def collect(self) -> Iterator[Metric]:
        vessel = self._vessel
        yield GaugeMetricFamily("lychd_up_seconds", "Seconds since this boot began", time.monotonic() - vessel.started)
        yield GaugeMetricFamily("lychd_resident_bytes", "Resident memory of the process", _resident())
        bus = vessel.bus.stats()
        yield GaugeMetricFamily("lychd_bus_channels", "Live event channels", bus.channels)
        yield GaugeMetricFamily("lychd_bus_folded", "Channels folded to their numbers", bus.folded)
        yield GaugeMetricFamily("lychd_bus_subscribers", "Live readers", bus.subscribers)
        yield CounterMetricFamily("lychd_bus_events", "Events emitted", bus.emitted)
        yield CounterMetricFamily("lychd_bus_resyncs", "Resyncs given to slow or late readers", bus.dropped_resyncs)
        evidence = vessel.evidence.stats()
        yield GaugeMetricFamily("lychd_evidence_waiting", "Events that wait to become Steps", evidence.waiting)
        yield CounterMetricFamily("lychd_evidence_written", "Steps written", evidence.written)
        yield CounterMetricFamily("lychd_evidence_lost", "Events that could not become Steps", evidence.lost)
        requests = CounterMetricFamily("lychd_edge_requests", "Requests of ledger edges", labels=["edge"])
        statements = CounterMetricFamily("lychd_edge_statements", "Statements of ledger edges", labels=["edge"])
        for use in vessel.ledger.uses():
            requests.add_metric([use.name], use.requests)
            statements.add_metric([use.name], use.statements)
        yield requests
        yield statements
        yield from self._lanes()
        yield from self._relays()
        yield GaugeMetricFamily("lychd_queued_runs", "Runs queued, as back-pressure counts them", vessel.limits.queued)
        yield GaugeMetricFamily("lychd_node_threads", "Node threads that run", vessel.threads.live)
        gates = GaugeMetricFamily("lychd_gate_open", "Whether a gate is open", labels=["gate"])
        for gate in (vessel.claim_gate, vessel.publish_gate):
            gates.add_metric([gate.name], float(gate.is_open))
        yield gates

    def _lanes(self) -> Iterator[Metric]:
        active = GaugeMetricFamily("lychd_lane_active", "Hops that run", labels=["lane"])
        free = GaugeMetricFamily("lychd_lane_free", "Free slots", labels=["lane"])
        for name, queue in self._vessel.lanes.queues.items():
            active.add_metric([name], len(queue.pump.live))
            free.add_metric([name], queue.pump.free)
        yield active
        yield free
        depth = GaugeMetricFamily("lychd_lane_queued", "Jobs that wait in a lane", labels=["lane"])
        wait = GaugeMetricFamily("lychd_lane_wait_seconds", "Age of a lane's longest waiting job", labels=["lane"])
        overtaken = GaugeMetricFamily(
            "lychd_lane_overtaken",
            "Whether more urgent work that came later runs before the longest waiting job",
            labels=["lane"],
        )
        for name, lane in self._stats.items():
            depth.add_metric([name], lane.queued)
            wait.add_metric([name], lane.waiting_seconds)
            overtaken.add_metric([name], float(lane.overtaken is not None))
        yield depth
        yield wait
        yield overtaken

    def _relays(self) -> Iterator[Metric]:
        passes = CounterMetricFamily("lychd_relay_passes", "Passes of a relay", labels=["relay"])
        failures = CounterMetricFamily("lychd_relay_failures", "Passes of a relay that raised", labels=["relay"])
        for name, status in self._vessel.supervisor.status.items():
            passes.add_metric([name], status.passes)
            failures.add_metric([name], status.failures)
        yield passes
        yield failures


def registry_for(vessel: Vessel, lanes: Mapping[str, LaneStats]) -> CollectorRegistry:
    """A registry that reads the Vessel when it is asked.

    Args:
        vessel: whose figures.
        lanes: how its lanes stand in the broker, which only a query can tell; empty while nobody answers it.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(vessel, lanes))
    return registry


def _resident() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0
