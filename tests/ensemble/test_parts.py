"""Parts of an ensemble: divided, shared out, reduced by anybody, stored on disk, and merged to the same bits."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rc_jax import ensemble
from rc_jax.ensemble import parts, resume, runner, summaries
from rc_jax.ensemble.parts import Partition
from rc_jax.ensemble.statistics import Layout, Statistics
from tests.ensemble.worker import observe


def statistics(pieces, partition):
    """Statistics of all parts, three components each."""
    whole = parts.whole(parts.join(pieces, 3, summaries.capacity(3)), partition)
    return Statistics(partition.count, Layout.of(np.zeros(3)), *whole)


def assert_same(a, b):
    np.testing.assert_equal(a.to_arrays(), b.to_arrays())


@settings(deadline=None, max_examples=200)
@given(count=st.integers(1, 2**32), components=st.integers(1, 10_000))
def test_parts_cover_all_samples_once_in_bounded_memory(count, components):
    partition = Partition.of(count, components)
    assert partition.parts * partition.size >= count > (partition.parts - 1) * partition.size
    assert partition.size % partition.block == 0 and 8 * partition.block * components <= parts.BLOCK_BYTES
    assert partition.parts >= min(count, 32)  # something for everybody
    assert partition.parts <= 64 or 48 * partition.parts * components <= 2 * parts.MOMENT_BYTES
    assert partition.samples(0, partition.parts) == (0, count)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.booleans(), min_size=1, max_size=90), st.lists(st.integers(1, 8), min_size=1, max_size=7))
def test_what_is_missing_is_shared_out_in_proportion(there, weights):
    missing = np.flatnonzero(~np.array(there))
    shares = [parts.missing_ranges(missing, weights, process) for process in range(len(weights))]
    counts = [sum(stop - first for first, stop in ranges) for ranges in shares]
    covered = [part for ranges in shares for first, stop in ranges for part in range(first, stop)]
    assert covered == missing.tolist()
    assert all(abs(n - len(missing) * w / sum(weights)) <= 1 for n, w in zip(counts, weights, strict=True))


def test_files_that_overlap_are_used_once_and_by_the_first_who_has_them():
    names = [resume.file_name(*each) for each in ((0, 4), (2, 9), (4, 6), (9, 10), (8, 99))]
    chosen, missing = resume.choose([names[:1] + names[3:], names, []], 12)
    assert chosen == {names[1]: 1, names[3]: 0}
    assert missing.tolist() == [0, 1, 10, 11]


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from([5, 700, 3001, 70_000]),
    shares=st.lists(st.floats(0, 1), max_size=3),
    chunk=st.integers(1, 5000),
)
def test_whoever_reduces_them_the_numbers_are_the_same(seed, count, shares, chunk):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(count, 3)) * [1, 1e-9, 1e6] + [0, 1, 1e6]
    partition = Partition.of(count, 3)

    def reduced(first, stop, chunk):
        start, end = partition.samples(first, stop)
        chunk = max(chunk, count // 50)
        chunks = (values[at : min(at + chunk, end)] for at in range(start, end, chunk))
        return list(parts.reduce(chunks, partition, first, 3, due=lambda: bool(rng.integers(2))))

    edges = sorted({0, partition.parts, *(int(share * partition.parts) for share in shares)})
    pieces = [piece for first, stop in itertools.pairwise(edges) for piece in reduced(first, stop, chunk)]
    sent = [parts.Parts.from_bytes(pieces[number].to_bytes()) for number in rng.permutation(len(pieces))]
    shared, alone = statistics(sent, partition), statistics(reduced(0, partition.parts, count), partition)
    assert_same(shared, alone)
    np.testing.assert_allclose(shared.mean, values.mean(0), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(shared.variance, values.var(0, ddof=1), rtol=1e-6)
    np.testing.assert_array_equal(shared.maximum, values.max(0))
    error = np.asarray(shared.quantile_error)[2] * np.abs(values[:, 2]).max()
    assert abs(shared.quantile(0.3)[2] - np.quantile(values[:, 2], 0.3)) <= error + 1e-6


def test_a_part_that_is_missing_or_twice_there_is_no_statistic():
    partition = Partition.of(100, 3)
    (piece,) = parts.reduce([np.ones((partition.size, 3))], partition, 0, 3)
    for wrong in ([piece], [piece] * partition.parts):
        with pytest.raises(AssertionError, match="every part must be there once"):
            statistics(wrong, partition)


@pytest.fixture
def computed(monkeypatch):
    """Numbers of samples asked of the devices, chunk by chunk."""
    asked, read = [], runner._read
    monkeypatch.setattr(runner, "_read", lambda chunk, size: asked.append(size) or read(chunk, size))
    return asked


def test_a_run_that_was_stopped_goes_on_from_its_finished_parts(key, tmp_path, monkeypatch, computed):
    whole = ensemble.run(observe, key, 2000, batch_size=8)
    computed.clear()
    save = resume.PartFiles.save

    def stop(files, piece):
        save(files, piece)
        if sum(computed) > 1000:
            raise KeyboardInterrupt

    monkeypatch.setattr(resume.PartFiles, "save", stop)
    with pytest.raises(KeyboardInterrupt), ensemble.kept(tmp_path, every=0):
        ensemble.run(observe, key, 2000, batch_size=8)
    monkeypatch.setattr(resume.PartFiles, "save", save)
    files = sorted(tmp_path.rglob("*.npz"))
    size = Partition.of(2000, 4).size
    there = sum(len(resume.parts_of(file.name)) for file in files) * size
    assert 500 < there < 1100
    files[0].write_bytes(files[0].read_bytes()[:-40])  # a damaged file is no file
    there -= len(resume.parts_of(files[0].name)) * size

    for left in (2000 - there, 0):
        computed.clear()
        with ensemble.kept(tmp_path, every=0):
            assert_same(ensemble.run(observe, key, 2000, batch_size=8), whole)
        assert sum(computed) == left
    computed.clear()
    with ensemble.kept(tmp_path, every=0):  # another count: nothing of it is there
        ensemble.run(observe, key, 2001, batch_size=8)
    assert sum(computed) == 2001


@pytest.mark.usefixtures("as_installed")
def test_a_file_with_a_wrong_byte_is_damaged_or_the_same(key, tmp_path):
    with ensemble.kept(tmp_path, every=0):
        ensemble.run(observe, key, 64, batch_size=64)
    file = next(tmp_path.rglob("*.npz"))
    content = file.read_bytes()
    whole = parts.Parts.from_bytes(content)
    assert whole is not None
    for place in range(0, len(content), 7):
        for wrong in (0x01, 0x40):
            damaged = content[:place] + bytes([content[place] ^ wrong]) + content[place + 1 :]
            read = parts.Parts.from_bytes(damaged)
            assert read is None or read.to_bytes() == whole.to_bytes()
    # A flag of encryption in the first entry of the zip file's directory.
    place = content.index(b"PK\x01\x02") + 8
    damaged = content[:place] + bytes([content[place] | 1]) + content[place + 1 :]
    assert parts.Parts.from_bytes(damaged) is None


def test_another_function_finds_nothing_and_a_quick_run_leaves_nothing(key, tmp_path, computed):
    def scaled(factor):
        return lambda key: factor * observe(key)["number"]

    for factor in (np.float32(1), np.float32(2)):  # same name, same key, same count: only the program differs
        with ensemble.kept(tmp_path, every=0):
            ensemble.run(scaled(factor), key, 64, batch_size=8)
    assert sum(computed) == 128 and len(list(tmp_path.iterdir())) == 2
    with ensemble.kept(tmp_path / "none"):
        ensemble.run(observe, key, 64, batch_size=8)
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("arguments, error", [((3,), TypeError), (("folder", -1.0), ValueError)])
def test_bad_input(arguments, error):
    with pytest.raises(error, match=r"`(folder|every)` must be"):
        ensemble.kept(*arguments)
