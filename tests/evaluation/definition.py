"""The statistics of evaluations once more, from their definitions: by counting subsets in whole numbers, by exact fractions, with Philox of its own.

Nothing here is taken from services/coordinator/evaluation; tests/e2e/test_evaluation.py compares the two."""
import collections
import fractions
import itertools
import math

Z = 1.959963984540054


def pass_at_k(samples, passed, k):
    """The share of the k-subsets that hold a right sample: counted for few samples, by binomials for many."""
    if samples <= 9:
        right = [i < passed for i in range(samples)]
        subsets = list(itertools.combinations(right, k))
        return sum(map(any, subsets)) / len(subsets)
    return float(1 - fractions.Fraction(math.comb(samples - passed, k), math.comb(samples, k)))


def majority(votes):
    """votes: (answer or 0, passed).  The chance that an answer drawn from the most frequent ones is the right one."""
    counts = collections.Counter("right" if passed else answer for answer, passed in votes if passed or answer)
    if not counts:
        return 0.0
    most = max(counts.values())
    best = [answer for answer, count in counts.items() if count == most]
    return 1 / len(best) if "right" in best else 0.0


def interval(values, draws):
    """Wilson's, with as many zeros and ones as the mean's variance is worth."""
    exact = [fractions.Fraction(v) for v in values]
    n = len(exact)
    p = sum(exact) / n
    variance = sum((v - p) ** 2 for v in exact) / n
    if p in (0, 1):
        m = n
    else:
        m = min(max(n, n * p * (1 - p) / variance if variance else draws), draws)
    p, m = float(p), float(m)
    half = Z * math.sqrt(p * (1 - p) / m + Z * Z / (4 * m * m))
    return p, max(0, (p + Z * Z / (2 * m) - half) / (1 + Z * Z / m)), min(1, (p + Z * Z / (2 * m) + half) / (1 + Z * Z / m))


def philox(counter, key):
    """Philox4x32-10 of Salmon et al., SC'11."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def bootstrap(differences, seed, resamples):
    """difference, low, high, p: means of n differences drawn with replacement."""
    n, means = len(differences), []
    for number in range(resamples):
        words = [w for block in range((n + 3) // 4) for w in philox((block, 7 << 24, 0, number), (seed & 0xFFFFFFFF, seed >> 32))][:n]
        means.append(sum(differences[w * n >> 32] for w in words) / n)
    means.sort()

    def quantile(share):
        at = share * (resamples - 1)
        below = int(at)
        return means[-1] if below + 1 >= resamples else means[below] + (at - below) * (means[below + 1] - means[below])

    fewer = min(sum(m <= 1e-12 for m in means), sum(m >= -1e-12 for m in means))
    return sum(differences) / n, quantile(0.025), quantile(0.975), min(1, 2 * (1 + fewer) / (1 + resamples))
