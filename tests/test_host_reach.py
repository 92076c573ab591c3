from shakedown.host.reach import free_port


def test_a_free_port_leaves_room_for_the_one_sglang_derives_from_it():
    """SGLang listens 10,000 ports higher too, and died of 56931 + 10000."""
    assert all(1024 < free_port() <= 65_535 - 10_000 for _ in range(50))
