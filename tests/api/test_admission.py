"""How many replies are taken on: counted one by one, however many a request asks for."""

import pytest

from swarm.api.admission import Admission
from swarm.api.errors import ApiError


def refusal(admission: Admission, count: int) -> ApiError:
    with pytest.raises(ApiError) as refused, admission.places(count):
        pass
    return refused.value


def test_replies_are_counted_not_requests() -> None:
    admission = Admission(slots=2, most_waiting=4)
    with admission.places(4):
        with admission.places(2):
            assert refusal(admission, 1).status == 429
        error = refusal(admission, 3)
        assert (error.status, error.code) == (429, "queue_full")
        assert int(error.headers["retry-after"]) >= 1
    with admission.places(6):
        pass


def test_what_could_never_be_taken_on_is_refused_for_good() -> None:
    error = refusal(Admission(slots=2, most_waiting=4), 128 * 128)
    assert (error.status, error.param) == (400, "n")
    assert "16,384" in error.message
    assert "takes on 6" in error.message
