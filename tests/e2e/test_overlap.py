"""Same seed, same weights, byte for byte after every round, whatever overlaps, dies, comes back, is paused or lies.  And the mutants.

Every test plays the same seeded run in another way and compares it with one server in mode `sync`: the digest after every round, every group's digest
(tokens, log-probabilities, rewards), its place in the dataset, and the learning rates.  `audit` then looks into the database: who was consumed or
filtered, which prompt came next, under which lease every sample was accepted, and that no version's number ever stood for two sets of weights.
"""
import collections
import json
import random
import re
import shutil
import signal
import time

import pytest

from harness import FAULT_BIN, SLOWLY, Cluster, HttpError, call, digests, grpo_config
from zombie import Zombie

ROUNDS, GROUPS, SAMPLES, REFILL_MAX = 6, 10, 6, 8
REFILL = {"zero_advantage": "refill", "refill_max": REFILL_MAX}
KEEP = {"zero_advantage": "keep"}
FAST = ["--slots", 4]
SLOTS = 3
SLOW = ["--slots", SLOTS, "--isa", "v2", SLOWLY]  # rounds so long that one can step in
QUICK = ["--heartbeat-ms", 100, "--worker-ttl-ms", 1500, "--batch-tokens", 700]  # small batches: many of them a round
PATIENT = ["--heartbeat-ms", 100, "--worker-ttl-ms", 60000, "--batch-tokens", 700]  # where a test is a worker itself, which may come late

# The numbers of states.h.
LEASED, DONE = 1, 2
CONSUMED, FILTERED = 3, 4
LEASE_DONE, LEASE_EXPIRED, LEASE_LOST, LEASE_HANDED_BACK = 1, 2, 3, 4
ROUND_DONE = 4


def config(mode="pipelined", filter=REFILL, **changes):
    made = grpo_config(ROUNDS, groups=GROUPS, samples=SAMPLES)
    made["training"].update(lr=0.001, schedule="cosine", warmup_steps=2, total_steps=ROUNDS + 3)  # a wrong step count shows in every learning rate
    made.update(mode=mode, filter=filter, **changes)
    return made


class Play:
    """A run that is over, as far as it must not depend on how it went."""

    def __init__(self, cluster, run):
        self.status = cluster.status(run)
        self.digests = digests(self.status)
        self.rates = [row["lr"] for row in self.status["history"]]
        columns = "round, ordinal, state, dataset_index, sample_count, hex(digest)"
        self.groups = cluster.query(f"SELECT {columns} FROM groups WHERE run = ? ORDER BY round, ordinal", number(run))
        self.tokens = sum(row["tokens"] for row in self.status["history"])
        self.overlapping = overlapping_rounds(cluster, run)

    @property
    def unequal(self):
        return self.status["totals"]["logprob_unequal"]


def number(run):
    return int(run.removeprefix("r"))


def start(folder, model, **options):
    options.setdefault("coordinator", QUICK)
    return Cluster(folder, model=model, **options)


def play(cluster, made):
    return finish(cluster, cluster.create_run(made))


def finish(cluster, run):
    cluster.wait(run, seconds=120)
    audit(cluster, run)
    return Play(cluster, run)


def assert_same(played, reference):
    assert played.digests == reference.digests
    assert played.unequal == 0 and played.status["totals"]["logprob_max_abs_diff"] == 0
    assert all(row["exact"] for row in played.status["history"])
    assert played.groups == reference.groups
    assert played.rates == reference.rates and played.tokens == reference.tokens
    assert played.overlapping, "training never overlapped generation"


def audit(cluster, run):
    """Invariants of the database: every group once, every lease's story, every version's one digest."""
    r = number(run)
    resolved = cluster.status(run)["config"]
    first = 0
    rounds = cluster.query("SELECT round, state, version, dataset_first, groups_open, digest FROM rounds WHERE run = ? ORDER BY round", r)
    for round_, state, version, begins, left, digest in rounds:
        where = f"round {round_}"
        assert state == ROUND_DONE and left == 0 and version == round_, where
        assert begins == first, f"{where} begins at another place of the dataset"
        first += audit_groups(cluster, r, round_, begins, resolved)
        audit_batches(cluster, r, round_)
        assert cluster.query("SELECT digest FROM versions WHERE run = ? AND version = ?", r, round_ + 1) == [(digest,)], where
    indices = [row[0] for row in cluster.query("SELECT dataset_index FROM groups WHERE run = ?", r)]
    assert len(indices) == len(set(indices)), "a prompt came twice within the first pass over the dataset"
    audit_leases(cluster, r)
    audit_versions(cluster, run)
    nondeterminism = cluster.query("SELECT subject, detail FROM incidents WHERE kind = 'nondeterminism'")
    assert nondeterminism == []
    assert cluster.status(run)["totals"]["stale_results_trained_on"] == 0


def audit_groups(cluster, r, round_, begins, resolved):
    """Every group of the round was consumed, or filtered for a reason and replaced by the next prompts of the dataset.  Returns how many there are."""
    where = f"round {round_}"
    sums = cluster.query("SELECT groups_trained, groups_filtered, groups_refilled FROM rounds WHERE run = ? AND round = ?", r, round_)
    (trained, filtered, refilled), = sums
    groups = cluster.query("SELECT ordinal, state, reason, batch, samples_open FROM groups WHERE run = ? AND round = ? ORDER BY ordinal", r, round_)
    per_round = resolved["groups_per_round"]
    assert [g[0] for g in groups] == list(range(per_round + refilled)), where
    consumed = [g for g in groups if g[1] == CONSUMED]
    dropped = [g for g in groups if g[1] == FILTERED]
    assert len(consumed) == trained and len(dropped) == filtered and trained + filtered == len(groups), (where, groups)
    assert all(batch is not None for _, _, _, batch, _ in consumed), (where, groups)
    assert all(reason and batch is None for _, _, reason, batch, _ in dropped), (where, groups)
    assert all(left == 0 for *_, left in groups), where
    refills = cluster.query("SELECT ordinal, replaces, dataset_ordinal FROM refills WHERE run = ? AND round = ? ORDER BY ordinal", r, round_)
    wanted = min(resolved["filter"]["refill_max"], filtered) if resolved["filter"]["zero_advantage"] == "refill" else 0
    assert len(refills) == refilled == wanted, (where, refills)
    assert [ordinal for ordinal, _, _ in refills] == list(range(per_round, per_round + refilled)), where
    assert [place for _, _, place in refills] == list(range(begins + per_round, begins + per_round + refilled)), where
    replaced = {replaces for _, replaces, _ in refills}
    assert len(replaced) == refilled and replaced <= {g[0] for g in dropped}, (where, refills)
    return len(groups)


def audit_batches(cluster, r, round_):
    batches = cluster.query("SELECT number, groups, done FROM batches WHERE run = ? AND round = ? ORDER BY number", r, round_)
    consumed = cluster.query("SELECT batch, count(*) FROM groups WHERE run = ? AND round = ? AND state = ? GROUP BY batch ORDER BY batch", r, round_, CONSUMED)
    assert all(done for _, _, done in batches) and [b[0] for b in batches] == list(range(len(batches))), (round_, batches)
    assert [(number, groups) for number, groups, _ in batches] == consumed, (round_, batches, consumed)


def audit_leases(cluster, r):
    """Every sample was accepted under exactly one lease, the newest that it ever had; fences only grow."""
    covering = collections.defaultdict(list)
    sql = "SELECT round, group_ordinal, sample_first, sample_count, fence, state, version_min, version_max FROM leases WHERE run = ? ORDER BY granted_ms, fence"
    for round_, group, first, count, fence, state, low, high in cluster.query(sql, r):
        assert low == high == round_, "a strict round has one version"
        for sample in range(first, first + count):
            covering[round_, group, sample].append((fence, state))
    for round_, group, sample, state, fence, low, high in cluster.query("SELECT round, group_ordinal, sample, state, fence, version_first, version_last FROM samples WHERE run = ?", r):
        fences = [f for f, _ in covering[round_, group, sample]]
        assert state == DONE and low == high == round_, (round_, group, sample)
        assert fences == sorted(set(fences)), "a fence was given twice, or fell"
        assert fence == fences[-1], "accepted under another lease than the newest"
        assert covering[round_, group, sample][-1][1] in (LEASE_DONE, LEASE_HANDED_BACK), (round_, group, sample)


def audit_versions(cluster, run):
    """A number stands for one set of weights, at the coordinator, in leases, in pushes and in every server's own words."""
    r = number(run)
    versions = dict(cluster.query("SELECT version, lower(hex(digest)) FROM versions WHERE run = ?", r))
    assert cluster.query("SELECT count(*) FROM versions WHERE run = ? AND state = 1", r) == [(1,)]
    for low, high, digest in cluster.query("SELECT DISTINCT version_min, version_max, lower(hex(digest)) FROM leases WHERE run = ?", r):
        assert digest in [versions.get(version) for version in range(low, high + 1)], "a lease was granted for weights that it is not valid for"
    for version, digest in cluster.query("SELECT DISTINCT version, lower(hex(digest)) FROM pushes WHERE run = ? AND staged = 1", r):
        assert versions[version] == digest
    for service in cluster.services:
        for version, digest in re.findall(rf"version (\d+) of run {run} is active, digest ([0-9a-f]+)", service.log.read_text()):
            assert versions[int(version)].startswith(digest), f"{service.name} sampled from other weights as version {version}"


def overlapping_rounds(cluster, run):
    """Rounds of which the trainer had a batch before their last group was sealed."""
    rounds = call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/timeline")["rounds"]
    return [row["round"] for row in rounds if row["batches"] and row["batches"][0]["submitted_ms"] < row["generated_ms"]]


def samples_in(cluster, run, round_, state):
    return cluster.query("SELECT count(*) FROM samples WHERE run = ? AND round = ? AND state = ?", number(run), round_, state)[0][0]


def wait_round(cluster, run, round_):
    """Until the round has been opened; polled where it is fast."""
    cluster.wait_until(f"round {round_} of {run}", lambda: cluster.query("SELECT 1 FROM rounds WHERE run = ? AND round = ?", number(run), round_))


def freeze_in_round(cluster, run, round_, server):
    """Freezes the only server when the round has been opened."""
    server.freeze_when(f"round {round_} of {run}", lambda: cluster.query("SELECT 1 FROM rounds WHERE run = ? AND round = ?", number(run), round_))


def freeze_in_middle(cluster, run, first, server, done=SAMPLES):
    """Freezes the only server when samples of a round are done, and more are leased to it than it decodes: the round `first`, or the first one after it whose
    middle is seen in time.  Which one it was."""
    def middle():
        for round_ in range(first, ROUNDS):
            if samples_in(cluster, run, round_, DONE) >= done and samples_in(cluster, run, round_, LEASED) > SLOTS:
                return round_ + 1
        return None

    return server.freeze_when(f"the middle of round {first} of {run}, or of a later one", middle) - 1


@pytest.fixture(scope="module")
def references(base_model, tmp_path_factory):
    """By filter: one server, one thread each, nothing overlaps."""
    made = {}
    for name, filter in (("keep", KEEP), ("refill", REFILL)):
        with start(tmp_path_factory.mktemp(name), base_model) as cluster:
            cluster.add_server("alone", *FAST)
            made[name] = play(cluster, config("sync", filter))
        assert made[name].overlapping == [], "sync must wait"
        assert made[name].unequal == 0
        assert len(set(made[name].digests)) == ROUNDS, "every round must change the weights, or equal digests would prove nothing"
        assert len(set(made[name].rates)) > ROUNDS // 2
    assert made["keep"].digests != made["refill"].digests
    return made


def test_rounds_of_the_reference_differ_in_their_refills(references):
    """Or equal digests with refills would prove little."""
    refilled = [len([g for g in references["refill"].groups if g[0] == r]) - GROUPS for r in range(ROUNDS)]
    assert all(n > 0 for n in refilled) and len(set(refilled)) > 1, refilled


@pytest.fixture(scope="module")
def reference(references):
    return references["refill"]


# ---- overlap ----


@pytest.mark.parametrize("filter", [KEEP, REFILL], ids=["keep", "refill"])
def test_pipelined_with_one_server(base_model, references, tmp_path, filter):
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("alone", *FAST)
        played = play(cluster, config(filter=filter))
    assert_same(played, references[filter["zero_advantage"]])
    assert len(played.overlapping) > ROUNDS // 2, f"training overlapped generation only in rounds {played.overlapping}"


@pytest.mark.parametrize("filter", [KEEP, REFILL], ids=["keep", "refill"])
def test_pipelined_with_three_unlike_servers(base_model, references, tmp_path, filter):
    with start(tmp_path, base_model, trainer=["--threads", 3, "--isa", "v3"]) as cluster:
        cluster.add_server("small", "--slots", 2, "--page-tokens", 16, "--prefill-chunk", 5, "--isa", "v2")
        cluster.add_server("middle", "--slots", 3, "--page-tokens", 48, "--prefill-chunk", 33, "--isa", "v3")
        cluster.add_server("large", "--slots", 5, "--page-tokens", 64, "--prefill-chunk", 256, "--threads", 2)
        cluster.wait_registered()
        played = play(cluster, config(filter=filter, lease_samples_max=2))
    assert_same(played, references[filter["zero_advantage"]])
    contributed = {w["name"]: w["samples"] for w in played.status["totals"]["workers"]}
    assert set(contributed) == {"small", "middle", "large"} and all(contributed.values()), contributed


@pytest.mark.parametrize(
    ("frontier", "samples_max"),
    [("priority", 1), ("gate", 1), ("off", 4), ("gate", 0), ("off", 0)],
)
def test_dispatch_changes_nothing(base_model, reference, tmp_path, frontier, samples_max):
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("one", *FAST)
        cluster.add_server("two", "--slots", 3)
        played = play(cluster, config(frontier=frontier, frontier_groups=2, lease_samples_max=samples_max))
    assert_same(played, reference)


# ---- generation-servers come, go and die ----


def test_a_server_killed_with_a_half_decoded_lease(base_model, reference, tmp_path):
    with start(tmp_path, base_model) as cluster:
        victim = cluster.add_server("victim", "--slots", 3, "--fault", "die-in-lease", bin_dir=FAULT_BIN)
        cluster.add_server("heir", "--slots", 3)
        run = cluster.create_run(config())
        victim.wait_killed()
        last_words = victim.wait_log(r"fault: die-in-lease (r\d+\.(\d+)\.(\d+)\.(\d+)-\d+) sample \d+ has (\d+) tokens", seconds=1)
        lease, tokens = last_words[1], int(last_words[5])
        played = finish(cluster, run)
        (victims_fence, state, count), = cluster.query(
            "SELECT l.fence, l.state, l.sample_count FROM leases l JOIN workers w ON w.id = l.worker WHERE l.id = ? AND w.name = 'victim' ORDER BY l.fence DESC LIMIT 1", lease)
        assert state in (LEASE_LOST, LEASE_EXPIRED) and tokens > 0
        round_, group, first = (int(last_words[i]) for i in (2, 3, 4))
        again = cluster.query(
            "SELECT s.sample, s.fence, w.name FROM samples s JOIN workers w ON w.id = s.worker WHERE run = ? AND round = ? AND group_ordinal = ? AND sample >= ? AND sample < ?",
            number(run), round_, group, first, first + count)
        assert len(again) == count and all(fence > victims_fence and name == "heir" for _, fence, name in again), again
    assert_same(played, reference)
    assert played.status["totals"]["leases_lost"] >= 1


def test_a_frozen_server_comes_back_to_lost_leases(base_model, reference, tmp_path):
    """It was stopped, not killed: what it decoded meanwhile belongs to others, and it must not do harm with it."""
    with start(tmp_path, base_model, coordinator=[*QUICK, "--lease-ttl-ms", 400]) as cluster:
        sleeper = cluster.add_server("sleeper", *SLOW)
        run = cluster.create_run(config(stage_timeout_ms=300))
        found = freeze_in_middle(cluster, run, 1, sleeper)
        cluster.add_server("awake", *FAST)
        wait_round(cluster, run, min(found + 2, ROUNDS - 1))
        sleeper.thaw()
        played = finish(cluster, run)
    assert_same(played, reference)
    assert played.status["totals"]["leases_lost"] >= 1


def test_a_drained_servers_partial_samples_are_continued(larger_model, tmp_path):
    """One server at a time, each drained in mid-round by SIGTERM, so that the next one's tokens can be counted: it continues, it does not begin again.

    A larger model, so that a server is found decoding, not between two leases."""
    with start(tmp_path / "reference", larger_model) as cluster:
        cluster.add_server("alone", *FAST)
        reference = play(cluster, config("sync", REFILL))
    assert len(set(reference.digests)) == ROUNDS
    with start(tmp_path, larger_model, coordinator=["--heartbeat-ms", 100, "--worker-ttl-ms", 20000]) as cluster:
        run, kept = None, []
        round_ = 0
        while round_ < ROUNDS - 1:
            server = cluster.add_server(f"s{round_}", *SLOW)
            run = run or cluster.create_run(config())
            round_ = freeze_in_middle(cluster, run, round_, server) + 1
            assert server.stop() == 0
            assert "result of lease" not in server.log_text(), f"it could not hand back what it held: {server.log_text()[-1000:]}"
            assert cluster.query("SELECT count(*) FROM leases WHERE state = 0") == [(0,)]
            kept.append(partial_samples(cluster, run))
            if len(kept) >= 3 and kept[-1]:
                break
        assert kept[-1] and len([k for k in kept if k]) >= 2, "nothing was handed back"
        last = cluster.add_server("last", *FAST)
        played = finish(cluster, run)
        sampled = last.metric("leasehold_generation_tokens_sampled_total")
        credited = {w["name"]: w["tokens"] for w in played.status["totals"]["workers"]}["last"]
        given = sum(len(tokens) for tokens, _ in kept[-1].values())
        assert given > 0 and sampled == credited - given, "the last server computed handed-back tokens again"
        for partial in kept:
            for key, (tokens, logprobs) in partial.items():
                whole = cluster.query("SELECT token_ids, logprobs, partial FROM rollouts WHERE run = ? AND round = ? AND group_ordinal = ? AND sample = ?", number(run), *key)
                assert whole[0][2] == 0 and whole[0][0].startswith(tokens_blob(tokens)) and whole[0][1].startswith(logprobs), key
    assert_same(played, reference)


def partial_samples(cluster, run):
    rows = cluster.query("SELECT round, group_ordinal, sample, token_ids, logprobs FROM rollouts WHERE run = ? AND partial = 1", number(run))
    return {(r, g, s): ([int.from_bytes(t[i : i + 2], "little") for i in range(0, len(t), 2)], l) for r, g, s, t, l in rows if len(t)}


def tokens_blob(tokens):
    """As they are stored where the vocabulary has at most 65,536 tokens."""
    return b"".join(t.to_bytes(2, "little") for t in tokens)


def test_servers_come_and_go_all_the_time(base_model, reference, tmp_path):
    chance = random.Random(5)
    tight = ["--slots", 2, "--isa", "v2", "--page-tokens", 16, "--kv-pages", 9, SLOWLY]
    with start(tmp_path, base_model) as cluster:
        pool = [cluster.add_server("s0", *SLOW)]
        run = cluster.create_run(config())
        for i in range(1, 6):
            freeze_in_middle(cluster, run, 0, pool[0], done=1)
            pool.append(cluster.add_server(f"s{i}", *chance.choice([SLOW, tight])))
            gone = pool.pop(0)
            if chance.random() < 0.3:
                gone.kill()
            else:
                assert gone.stop() == 0
        cluster.add_server("helper", *FAST)
        played = finish(cluster, run)
    assert_same(played, reference)
    assert len([w for w in played.status["totals"]["workers"] if w["samples"]]) >= 3


# ---- the trainer dies ----


@pytest.mark.parametrize("fault", ["die-before-step", "die-before-publish", "die-in-checkpoint", "die-in-batch"])
def test_a_trainer_killed_at_the_worst_moment(base_model, reference, tmp_path, fault):
    with start(tmp_path, base_model, trainer=["--fault", fault], trainer_bin=FAULT_BIN) as cluster:
        cluster.add_server("alone", *FAST)
        run = cluster.create_run(config())
        cluster.trainer.wait_killed()
        died_in = cluster.status(run)["round"]
        assert "fault: " + fault in cluster.trainer.log_text()
        assert cluster.status(run)["state"] == "running" and 0 < died_in < ROUNDS
        cluster.trainer.restart()
        played = finish(cluster, run)
    assert_same(played, reference)


def sparse():
    """Checkpoints of versions 3 and 6 only."""
    made = config()
    made["training"]["checkpoint_every"] = 3
    return made


def kill_trainer_in_last_round(cluster, made):
    """Versions 4 and 5 exist as rollouts and digests then, nowhere as weights of the trainer's."""
    server = cluster.add_server("alone", "--slots", 1, SLOWLY)
    run = cluster.create_run(made)
    freeze_in_round(cluster, run, ROUNDS - 1, server)
    cluster.trainer.kill()
    server.hurry()
    assert cluster.query("SELECT state FROM rounds WHERE run = ? AND round = ?", number(run), ROUNDS - 1) != [(ROUND_DONE,)], "the trainer was killed too late for this test"
    return run


def replays(cluster, run):
    return [json.loads(data) for (data,) in cluster.query("SELECT data FROM events WHERE run = ? AND type = 'replay' ORDER BY id", number(run))]


@pytest.mark.parametrize("lost", ["nothing", "state", "again", "coordinator"])
def test_a_lost_version_is_replayed(base_model, reference, tmp_path, lost):
    with start(tmp_path, base_model) as cluster:
        run = kill_trainer_in_last_round(cluster, sparse())
        if lost == "state":
            shutil.rmtree(cluster.folder / "state")
        cluster.trainer.restart(port=0 if lost == "state" else None)
        cluster.trainer.wait_log("recorded is 5: replaying")
        if lost in ("again", "coordinator"):
            service = cluster.trainer if lost == "again" else cluster.coordinator
            service.kill()
            service.restart()
        played = finish(cluster, run)
        steps = replays(cluster, run)
    begin = 0 if lost == "state" else 3
    assert steps[0] == {"from": begin, "at": begin, "to": 5} and steps[-1]["at"] == steps[-1]["to"] == 5, steps
    assert_same(played, reference)


def test_a_replay_that_ends_in_other_weights_is_no_old_version(base_model, reference, tmp_path):
    """The replaying trainer flips one bit of one gradient: what it holds then must never go under a recorded version's number."""
    with start(tmp_path, base_model) as cluster:
        run = kill_trainer_in_last_round(cluster, sparse())
        recorded = cluster.query("SELECT version, digest FROM versions WHERE run = ? ORDER BY version", number(run))
        shutil.rmtree(cluster.folder / "state")
        cluster.trainer.restart(args=[*cluster.trainer.args, "--fault", "flip-gradient"], bin_dir=FAULT_BIN)
        cluster.wait(run, state="paused")
        status = cluster.status(run)
        assert cluster.query("SELECT version, digest FROM versions WHERE run = ? ORDER BY version", number(run)) == recorded
        incidents = cluster.query("SELECT detail FROM incidents WHERE kind = 'nondeterminism'")
        audit_versions(cluster, run)
    assert "digest" in status["error"] and "recorded" in status["error"], status["error"]
    assert any("replaying round" in detail for (detail,) in incidents), incidents
    assert digests(status) == reference.digests[: ROUNDS - 1]


# ---- the coordinator dies ----


@pytest.mark.parametrize("fault", ["die-after-accept", "die-after-plan"])
def test_a_coordinator_killed_at_the_worst_moment(base_model, reference, tmp_path, fault):
    with start(tmp_path, base_model, coordinator=[*QUICK, "--fault", fault], coordinator_bin=FAULT_BIN) as cluster:
        cluster.add_server("one", *FAST)
        cluster.add_server("two", "--slots", 2)
        run = cluster.create_run(config())
        cluster.coordinator.wait_killed()
        assert "fault: " + fault in cluster.coordinator.log_text()
        assert cluster.query("SELECT count(*) FROM rounds WHERE run = ? AND state = ?", number(run), ROUND_DONE)[0][0] < ROUNDS
        cluster.coordinator.restart()
        played = finish(cluster, run)
    assert_same(played, reference)


# What deploy/operation/README.md states, --drain-ms included; for the trainer what its unit gives it.
STOPS_WITHIN = {"coordinator": 15, "generation-server": 12, "trainer-server": 120}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_everything_stops_in_the_middle_and_goes_on(base_model, reference, tmp_path, how):
    with start(tmp_path, base_model) as cluster:
        server = cluster.add_server("alone", *SLOW)
        run = cluster.create_run(config() if how == signal.SIGTERM else sparse())
        found = 0
        for together, order in ((True, [cluster.coordinator, cluster.trainer, server]), (False, [server, cluster.trainer, cluster.coordinator])):
            found = freeze_in_middle(cluster, run, found + 1, server)
            for service in order:  # the first time all at once, the second time as a person would
                service.process.send_signal(how)
                service.thaw()
                if not together:
                    service.wait_end(STOPS_WITHIN[service.program])
            for service in order:
                assert service.wait_end(STOPS_WITHIN[service.program]) == (0 if how == signal.SIGTERM else -how), f"{service.name}: {service.log_text()[-1000:]}"
            for service in (cluster.coordinator, cluster.trainer, server):
                service.restart()
        cluster.add_server("helper", *FAST)
        played = finish(cluster, run)
    assert_same(played, reference)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_everybody_is_killed_again_and_again(base_model, reference, tmp_path, seed):
    """Anybody, at any moment, alone or together, by any signal; sparse checkpoints, so that most of the trainer's deaths need a replay."""
    chance = random.Random(seed)
    with start(tmp_path, base_model) as cluster:
        pool = [cluster.add_server("a", *SLOW), cluster.add_server("b", "--slots", 2, "--isa", "v2", "--page-tokens", 16, "--kv-pages", 9)]
        run = cluster.create_run(sparse())
        for _ in range(10):
            time.sleep(chance.uniform(0.01, 0.25))
            hit = chance.sample([cluster.coordinator, cluster.trainer, *pool], chance.choice([1, 1, 1, 2, 4]))
            how = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
            for service in hit:
                service.process.send_signal(how)
            if how == signal.SIGSTOP:
                time.sleep(chance.uniform(0.01, 0.2))
                for service in hit:
                    service.thaw()
                continue
            for service in hit:
                assert service.wait_end() == (0 if how == signal.SIGTERM else -how), f"{service.name}: {service.log_text()[-1000:]}"
            if cluster.trainer in hit and chance.random() < 0.25:
                shutil.rmtree(cluster.folder / "state")
            for service in chance.sample(hit, len(hit)):
                service.restart()
        cluster.add_server("helper", *FAST)
        played = finish(cluster, run)
    assert_same(played, reference)


# ---- people ----


def test_pause_and_resume_in_mid_round(base_model, reference, tmp_path):
    with start(tmp_path, base_model) as cluster:
        server = cluster.add_server("alone", *SLOW)
        run = cluster.create_run(config())
        round_ = 0
        for _ in range(2):
            round_ = freeze_in_middle(cluster, run, round_ + 1, server)
            call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/pause")
            server.thaw()
            cluster.wait(run, state="paused")
            cluster.wait_until("what is leased to be done", lambda: samples_in(cluster, run, round_, LEASED) == 0)
            still = samples_in(cluster, run, round_, DONE)
            time.sleep(0.3)
            assert samples_in(cluster, run, round_, DONE) == still and samples_in(cluster, run, round_, LEASED) == 0
            assert cluster.status(run)["round"] == round_
            call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/resume")
        cluster.add_server("helper", *FAST)
        played = finish(cluster, run)
    assert_same(played, reference)


# ---- zombies, and the mutants that let them in ----


def zombie_under_an_old_fence(cluster, made):
    """The zombie takes a lease, lets it lapse, waits until another holds its samples, and posts garbage under the old fence: (the answer's status, the run).

    The other one decodes nothing either, so that it still holds them then, however quick a server would be; the honest one stands still meanwhile."""
    honest = cluster.add_server("honest", *SLOW)
    run = cluster.create_run(made)
    freeze_in_round(cluster, run, 1, honest)
    zombie = Zombie(cluster.coordinator)
    lease = cluster.wait_until("a lease for the zombie", lambda: zombie.beat() and zombie.take())[0]
    heir = Zombie(cluster.coordinator, "heir")
    reissued = (
        "SELECT 1 FROM leases l JOIN workers w ON w.id = l.worker WHERE w.name = 'heir' AND l.state = 0 AND run = ? AND round = ? AND group_ordinal = ?"
        " AND l.fence > ? AND ? BETWEEN sample_first AND sample_first + sample_count - 1"
    )
    which = [number(run)] + [lease[key] for key in ("round", "group_ordinal", "fence", "sample_first")]

    def held_by_another():
        zombie.beat()
        heir.beat(held)
        held.extend(heir.take(wait_ms=100))
        return bool(cluster.query(reissued, *which))

    held = []
    cluster.wait_until("the lease to be re-issued with a higher fence", held_by_another)
    answer = zombie.post(lease)
    honest.kill()  # or, with the mutant, its own result might be written over the garbage
    cluster.add_server("helper", *FAST)
    return answer, run


SHORT_LEASES = [*PATIENT, "--lease-ttl-ms", 300]


@pytest.mark.parametrize("fault", [None, "no-fence-check"])
def test_garbage_under_an_old_fence(base_model, references, tmp_path, fault):
    """Nothing is filtered here, so that garbage that is let in is trained on, whatever its rewards."""
    coordinator = SHORT_LEASES + (["--fault", fault] if fault else [])
    with start(tmp_path, base_model, coordinator=coordinator, coordinator_bin=FAULT_BIN) as cluster:
        answer, run = zombie_under_an_old_fence(cluster, config(filter=KEEP, lease_samples_max=2, verify_samples=not fault))  # which sees it anyway
        if fault:
            cluster.wait(run)
            played = Play(cluster, run)
        else:
            played = finish(cluster, run)
    if fault:
        assert answer == 200, "the mutant lets it in"
        assert played.unequal > 0 and played.digests != references["keep"].digests, "garbage was trained on, and nobody saw it"
    else:
        assert answer in (409, 410)
        assert_same(played, references["keep"])
        assert played.status["totals"]["results_refused"] >= 1


def test_a_zombie_of_an_earlier_life_of_the_coordinator(base_model, reference, tmp_path):
    with start(tmp_path, base_model, coordinator=PATIENT) as cluster:
        honest = cluster.add_server("honest", *SLOW)
        run = cluster.create_run(config(lease_samples_max=2))
        freeze_in_round(cluster, run, 1, honest)
        zombie = Zombie(cluster.coordinator)
        lease = cluster.wait_until("a lease for the zombie", lambda: zombie.beat() and zombie.take())[0]
        cluster.coordinator.kill()
        cluster.coordinator.restart()
        assert zombie.post(lease) in (409, 410)
        with pytest.raises(HttpError) as refused:
            zombie.beat()
        assert refused.value.status == 409
        former = zombie.id
        zombie.register()
        assert zombie.id != former
        assert zombie.post(lease) == 403, "a lease is its incarnation's"
        assert zombie.post(lease, {**zombie.garbage(lease), "worker_id": former}) in (409, 410)
        honest.thaw()
        cluster.add_server("helper", *FAST)
        played = finish(cluster, run)
    assert_same(played, reference)


@pytest.mark.parametrize("fault", [None, "no-version-check"])
def test_a_server_that_goes_on_sampling_from_old_weights(base_model, references, tmp_path, fault):
    with start(tmp_path, base_model, coordinator=[*QUICK, *(["--fault", fault] if fault else [])], coordinator_bin=FAULT_BIN) as cluster:
        cluster.add_server("honest", *FAST)
        cluster.add_server("stale", *FAST, "--fault", "no-version-check", bin_dir=FAULT_BIN)
        cluster.wait_registered()
        run = cluster.create_run(config(filter=KEEP, lease_samples_max=2, verify_samples=not fault))  # which sees it anyway
        if fault:
            cluster.wait(run)
            played = Play(cluster, run)
        else:
            played = finish(cluster, run)
        granted = cluster.query("SELECT version_min, count(*) FROM leases l JOIN workers w ON w.id = l.worker WHERE l.run = ? AND w.name = 'stale' GROUP BY version_min", number(run))
    heard = 1  # it loads versions 0 and 1, and is deaf to the others
    if fault:
        assert max(version for version, _ in granted) > heard, granted
        assert played.unequal > 0 and played.digests != references["keep"].digests
    else:
        assert granted and max(version for version, _ in granted) <= heard, f"leases of {granted} (version, how many) were granted to a server with version {heard}"
        assert_same(played, references["keep"])


# ---- mutants of the arithmetic of membership ----


@pytest.mark.parametrize("fault", [None, "drop-refill"])
def test_a_dropped_refill(base_model, reference, tmp_path, fault):
    with start(tmp_path, base_model, coordinator=[*QUICK, *(["--fault", fault] if fault else [])], coordinator_bin=FAULT_BIN) as cluster:
        cluster.add_server("alone", *FAST)
        run = cluster.create_run(config())
        cluster.wait(run)
        played = Play(cluster, run)
    assert (played.digests != reference.digests) == bool(fault)


@pytest.mark.parametrize("fault", [None, "double-batch"])
def test_a_batch_that_counts_twice(base_model, reference, tmp_path, fault):
    with start(tmp_path, base_model, trainer=["--fault", fault] if fault else [], trainer_bin=FAULT_BIN) as cluster:
        cluster.add_server("alone", *FAST)
        played = play(cluster, config())
    assert (played.digests != reference.digests) == bool(fault)
