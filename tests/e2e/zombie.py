"""A worker that speaks the protocol by hand and keeps none of its promises: it takes leases and lets them lapse, and comes back with garbage.

It decodes nothing.  What it posts has the right form (ids of the vocabulary, a stop token at the end, log-probabilities that a sampler could have
computed), so that only fences, epochs, deadlines and digests can tell it from a result.
"""
import random

from harness import call, exchange

URL = "http://127.0.0.1:9"  # nobody listens there: pushes to it fail, as to any dead server
DIGITS = range(ord("0"), ord("9") + 1)


class Zombie:
    def __init__(self, coordinator, name="zombie", slots=4):
        self.coordinator = coordinator
        self.name = name
        self.slots = slots
        self.random = random.Random(name)
        self.register()

    def register(self):
        answer = call("POST", self.coordinator.url + "/v1/workers", {"name": self.name, "kind": "generation", "url": URL, "slots": self.slots, "exactness": "invariant"})
        self.id, self.epoch, self.loaded = answer["worker_id"], answer["epoch"], None

    def beat(self, leases=()):
        """A sign of life that renews only the leases it names.  Pretends to have loaded whatever is current."""
        body = {
            "epoch": self.epoch,
            "ready": True,
            "draining": False,
            "loaded_digest": self.loaded,
            "slots_busy": 0,
            "busy_slot_us": 0,
            "tokens_sampled": 0,
            "leases": [{"id": lease["id"], "fence": lease["fence"]} for lease in leases],
        }
        answer = call("POST", f"{self.coordinator.url}/v1/workers/{self.id}/heartbeat", body)
        self.loaded = answer["current"] and answer["current"]["digest"]
        return answer

    def take(self, slots_free=None, wait_ms=1000):
        """One poll: a list of leases, perhaps empty."""
        body = {"epoch": self.epoch, "slots_free": slots_free or self.slots, "wait_ms": wait_ms, "loaded_digest": self.loaded}
        answer = call("POST", f"{self.coordinator.url}/v1/workers/{self.id}/leases", body)
        self.loaded = answer["current"] and answer["current"]["digest"]
        return answer["leases"]

    def garbage(self, lease):
        """A well-formed result whose tokens nobody sampled."""
        samples = []
        for index in range(lease["sample_first"], lease["sample_first"] + lease["sample_count"]):
            tokens = [self.random.choice(DIGITS) for _ in range(min(7, lease["max_new_tokens"] - 1))] + [lease["stop_token_ids"][0]]
            samples.append(
                {
                    "sample": index,
                    "token_ids": tokens,
                    "logprobs": [-2.25 - position / 8 for position in range(len(tokens))],
                    "finish_reason": "stop",
                    "segments": [{"start": 0, "count": len(tokens), "loss_mask": True}],
                    "version_spans": [{"version": lease["version_min"], "start": 0, "count": len(tokens)}],
                }
            )
        return {
            "worker_id": self.id,
            "epoch": self.epoch,
            "fence": lease["fence"],
            "loaded_digest": lease["weights_digest"],
            "handed_back": False,
            "samples": samples,
        }

    def post(self, lease, result=None):
        """The answer's status, whatever it is; the contract judges its body."""
        return exchange("PUT", f"{self.coordinator.url}/v1/leases/{lease['id']}/result", result or self.garbage(lease))[0]


class Conversation(Zombie):
    """A worker of others, whose completions of 6 to 8 tokens are two turns with an answer of somebody else between them."""

    @staticmethod
    def segments(tokens):
        return [{"start": 0, "count": 3, "loss_mask": True}, {"start": 3, "count": 2, "loss_mask": False}, {"start": 5, "count": tokens - 5, "loss_mask": True}]

    def garbage(self, lease):
        result = super().garbage(lease)
        for sample in result["samples"]:
            tokens = 6 + sample["sample"] % 3
            sample.update(token_ids=sample["token_ids"][: tokens - 1] + sample["token_ids"][-1:], logprobs=sample["logprobs"][:tokens], segments=self.segments(tokens))
            sample["version_spans"][0]["count"] = tokens
        return result

    @classmethod
    def play(cls, cluster, run):
        """The only generation-server of a run of one round, until it has ended; its status."""
        worker = cls(cluster.coordinator, "conversation")

        def played():
            worker.beat()
            for lease in worker.take(wait_ms=100):
                assert worker.post(lease) == 200
            return cluster.status(run)["state"] not in ("checking", "queued", "starting", "running")

        cluster.wait_until("the run has ended", played)
        return cluster.wait(run)
