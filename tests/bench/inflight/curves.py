"""What learning curves say beside those of sync: how many samples, and how many seconds, until an accuracy is reached.

  accuracies of a run's checkpoints -> mean of each with its neighbours -> first crossing of the target, on a straight line between two checkpoints

A curve that never gets there has None.  Everything is taken seed by seed against the sync run of the same seed, so what a seed's weights make easy or hard
falls out; the median and the spread are over the seeds.
"""
import statistics

ATTAINED, SAMPLES_AGAINST_SYNC, SOONER = 0.82, 1.1, 1.6  # the bars: at least, at most, at least
NOISE = 0.05  # of a core, that others may take


def smoothed(values):
    """Each with the one before and the one behind it, as far as there are any."""
    return [statistics.mean(values[max(0, i - 1) : i + 2]) for i in range(len(values))]


def crossing(points, target):
    """points: [(x, accuracy)] in order.  Where the smoothed accuracy first reaches the target; None: nowhere."""
    found = list(zip((x for x, _ in points), smoothed([y for _, y in points])))
    if found and found[0][1] >= target:
        return found[0][0]
    for (x0, y0), (x1, y1) in zip(found, found[1:]):
        if y1 >= target:
            return x0 + (x1 - x0) * (target - y0) / (y1 - y0)
    return None


def reached(run, name, target):
    """Samples or seconds of a run until the target."""
    return crossing([(0, run["before"]), *((row[name], row["accuracy"]) for row in run["steps"] if "accuracy" in row)], target)


def attainable(sync, step_samples):
    """Samples a second, if the slower of sampler and trainer never waited; of a sync run's own figures."""
    return step_samples / max(sync["rollout_s"], sync["train_s"])


def against_sync(run, sync, step_samples, target):
    """A run's figures beside the sync run of its seed; None where one of the two has not got there."""
    samples, seconds = ([reached(one, name, target) for one in (run, sync)] for name in ("samples", "seconds"))
    return {
        "samples_per_s": run["samples_per_s"],
        "faster": run["samples_per_s"] / sync["samples_per_s"],
        "attained": run["samples_per_s"] / attainable(sync, step_samples),
        "samples_to": samples[0],
        "samples_more": samples[0] / samples[1] if None not in samples else None,
        "seconds_to": seconds[0],
        "sooner": seconds[1] / seconds[0] if None not in seconds else None,
        "accuracy_end": [row["accuracy"] for row in run["steps"] if "accuracy" in row][-1],
    }


def spread(values, worst=None):
    """(median, least, most).  None among the values counts as `worst` in the median and is not in the spread; a median that is the worst is no figure: None."""
    known = [value for value in values if value is not None]
    median = statistics.median(worst if value is None else value for value in values)
    return None if median == worst or not known else (median, min(known), max(known))


def lag_used(runs, warm):
    """(least, mean, most) over the steps behind the first `warm`."""
    rows = [row for run in runs for row in run["steps"][warm:]]
    return min(row["lag_min"] for row in rows), statistics.mean(row["lag_mean"] for row in rows), max(row["lag_max"] for row in rows)


def noisy(run):
    return run["others"] > NOISE or run["stolen"] > NOISE
