"""Small worlds explored to the end, and rules taken away: the short version of the model check."""

from __future__ import annotations

from dataclasses import replace

import pytest

from durable_core.commit.journal import View
from durable_core.testing.check.actors import continuing, created, worker
from durable_core.testing.check.explorer import Explorer, Scenario
from durable_core.testing.check.mutants import authority_rules, kill, mutants
from durable_core.testing.check.scenarios import SCENARIOS, SMALL_FIRST, upgrading
from durable_core.testing.planted import without

SMALL = ("an impostor", "a step", "creation", "a cold", "epochs", "retirement of", "who", "a report",
         "two adoptions", "adoption in")  # fmt: skip


@pytest.mark.parametrize(
    "scenario",
    [scenario for scenario in SCENARIOS if scenario.name.startswith(SMALL)],
    ids=lambda scenario: scenario.name,
)
def test_no_interleaving_of_a_small_world_violates_anything(scenario):
    report = Explorer(scenario).run()
    assert report.complete and report.violations == [] and report.states > 50


def test_a_handover_with_a_lost_answer_and_an_unaware_restart():
    actors = (continuing("L1", 10), worker("L2", 1), worker("L1", 0))
    report = Explorer(Scenario("handover", created("L1", 1), actors, 1)).run()
    assert report.complete and report.violations == [] and report.states > 1000


@pytest.mark.parametrize("mutant", list(mutants()), ids=lambda mutant: mutant.name)
def test_every_rule_taken_away_is_missed(mutant):
    report = kill(replace(mutant, scenarios=mutant.scenarios[:1]))
    assert report is not None, "no violation where one is known to be"


def test_every_rule_has_its_mutant_and_every_scenario_its_place():
    names = {mutant.name for mutant in mutants()}
    assert {f"without {rule.__name__}" for rule in authority_rules()} <= names
    assert set(SMALL_FIRST) == set(SCENARIOS) and len({s.name for s in SCENARIOS}) == len(SCENARIOS)


def test_removing_a_rule_removes_it_everywhere():
    rule = authority_rules()[0]
    table = without(rule)
    assert all(rule not in row.rules for row in table.values())
    assert View(table=table).table is not View().table


def test_an_upgraded_token_is_seen():
    assert any("refused" in violation for violation in Explorer(upgrading).run().violations)


class Unmerged(Explorer):
    """Tells two local states apart whenever their answers differ, however alike they are."""

    def _local(self, actor, answers, effect, notes, frames):
        return super()._local(actor, answers, effect, notes, answers)


@pytest.mark.parametrize("name", ["creation", "a cold", "who", "a report", "retirement of", "epochs"])
def test_taking_like_states_for_one_loses_no_history(name):
    (scenario,) = (scenario for scenario in SCENARIOS if scenario.name.startswith(name))
    scenario = replace(scenario, faults=min(1, scenario.faults))
    merged, unmerged = Explorer(scenario).run(), Unmerged(scenario).run()
    assert merged.journals == unmerged.journals and merged.violations == unmerged.violations
    assert merged.states < unmerged.states
