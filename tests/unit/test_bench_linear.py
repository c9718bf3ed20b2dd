import torch

from rotary.bench import Record, linear


def test_the_gate_is_green_and_turns_red_for_a_wrong_answer(monkeypatch):
    assert linear.SUITE.gate(Record()) == []
    right = linear.linear_attention

    def wrong(q, k, v, *, rotation, causal):
        return right(q, k, v, rotation=rotation.transpose(), key_rotation=rotation, causal=causal)

    monkeypatch.setattr(linear, "linear_attention", wrong)
    assert any("causal=True: o differs" in each for each in linear.SUITE.gate(Record()))


def test_cases_run_and_leave_their_inputs_alone():
    cases = linear._attention(70, "cpu", causal=True, trains=True)
    for case in cases.values():
        case()
    assert torch.equal(linear._inputs(9, "cpu")[0], linear._inputs(9, "cpu")[0])
