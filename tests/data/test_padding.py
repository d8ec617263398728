"""Padding, and batches of similar length."""

from hypothesis import given
from hypothesis import strategies as st

from covnmt.data.padding import LONG_SENTENCE, length_sorted_batches, pad_ids
from covnmt.text.vocabulary import PAD_ID

END = 9


@given(st.lists(st.integers(0, 50)), st.integers(1, 7))
def test_batches_have_every_index_once_sorted_by_length(lengths: list[int], size: int) -> None:
    found = list(length_sorted_batches(lengths, size))
    order = [number for batch in found for number in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[number] for number in order] == sorted(lengths)
    assert all(len(batch) == size for batch in found[:-1])
    assert all(0 < len(batch) <= size for batch in found)


def test_a_very_long_sentence_gets_a_smaller_batch() -> None:
    """Otherwise a document on one line would pad all sentences of its batch."""
    lengths = [5] * 5 + [LONG_SENTENCE] * 4 + [2 * LONG_SENTENCE] * 3 + [100 * LONG_SENTENCE] * 2
    found = [[lengths[number] for number in batch] for batch in length_sorted_batches(lengths, 4)]
    some = [
        [5] * 4,
        [5] + [LONG_SENTENCE] * 3,
        [LONG_SENTENCE, 2 * LONG_SENTENCE],
        [2 * LONG_SENTENCE] * 2,
    ]
    assert found == [*some, [100 * LONG_SENTENCE], [100 * LONG_SENTENCE]]


def test_padding_adds_end_symbols_and_a_mask() -> None:
    padded = pad_ids([[5, 6], [], [7]], END)
    assert padded.ids.tolist() == [[5, 6, END], [END, PAD_ID, PAD_ID], [7, END, PAD_ID]]
    assert padded.lengths.tolist() == [3, 1, 2]
