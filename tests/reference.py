"""Order v1 in code: the specification, in plain Python ints, for reading and reimplementing. Slow, and meant to be."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha512

M32, M64 = 2**32 - 1, 2**64 - 1
Function = Callable[[int], int]


def _digest(message: str) -> bytes:
    return sha512(message.encode("ascii")).digest()


@lru_cache(maxsize=4096)
def _philox_block(key: int, block: int) -> tuple[int, ...]:
    """Four 64-bit words of Philox4x64-10 (Salmon et al., 2011); its counter is incremented before each block."""
    c = [(block + 1) >> (64 * i) & M64 for i in range(4)]
    for j in range(10):
        key_low = (key + j * 0x9E3779B97F4A7C15) & M64
        key_high = ((key >> 64) + j * 0xBB67AE8584CAA73B) & M64
        a, b = c[0] * 0xD2E7470EE14C6C93, c[2] * 0xCA5A826395121157
        c = [(b >> 64) ^ c[1] ^ key_low, b & M64, (a >> 64) ^ c[3] ^ key_high, a & M64]
    return tuple(c)


def _philox(digest: bytes) -> Function:
    return lambda i: _philox_block(int.from_bytes(digest[:16], "little"), i // 4)[i % 4]


def _key(n: int, seed: int, epoch: int) -> bytes:
    return _digest(f"rankless/v1/n={n}/seed={seed}/epoch={epoch}")


def network(n: int, seed: int, epoch: int) -> tuple[Callable[[int, int], int], int]:
    """(E(x, sign), where sign = -1 gives the inverse; how many values it permutes: n or a few more), n > 4096."""
    w = [int.from_bytes(_key(n, seed, epoch)[4 * i : 4 * i + 4], "little") for i in range(16)]
    bits = (n - 1).bit_length()
    k = 32 if bits == 63 else bits // 2
    b = -(-n // 2**k)
    v = min(31, (b - 1).bit_length() + 8)

    def encrypt(x: int, sign: int) -> int:
        left, right = x >> k, x % 2**k
        for j in range(8)[::sign]:
            t = ((left if j % 2 else right) * (w[2 * j] | 1) + w[2 * j + 1]) & M32
            t = (t ^ t >> 15) * 0x9E3779B1 & M32
            left, right = (left, right ^ t >> 32 - k) if j % 2 else ((left + sign * (t >> 32 - v)) % b, right)
        return left << k | right

    return encrypt, b << k


def order(n: int, seed: int, epoch: int) -> tuple[Function, Function]:
    """(position -> index, index -> position) of the permutation of range(n), 1 <= n < 2^63."""
    if n <= 4096:
        word, m = _philox(_key(n, seed, epoch)), max(1, (n - 1).bit_length())
        table = [s % 2**m for s in sorted(word(i) >> m << m | i for i in range(n))]
        return table.__getitem__, table.index
    encrypt, _ = network(n, seed, epoch)

    def walk(x: int, sign: int) -> int:
        while (x := encrypt(x, sign)) >= n:
            pass
        return x

    return lambda p: walk(p, 1), lambda x: walk(x, -1)


def repeats(n: int, seed: int, epoch: int) -> Function:
    """Position -> index of EpochRepeats: one permutation after another, each with a seed of its own."""

    @lru_cache(maxsize=2)
    def nth(j: int) -> Function:
        derived = int.from_bytes(_digest(f"rankless/v1/repeat={j}/seed={seed}")[:16], "little")
        return order(n, derived if j else seed, epoch)[0]

    return lambda p: nth(p // n)(p % n)


def draws(n: int, seed: int, epoch: int) -> Function:
    """Position -> index of EpochDraws: independent draws, with replacement."""
    word = _philox(_digest(f"rankless/v1/draws/n={n}/seed={seed}/epoch={epoch}"))
    if n <= 2**32:
        return lambda p: word(p) * n >> 64
    return lambda p: (word(2 * p) << 64 | word(2 * p + 1)) * n >> 128
