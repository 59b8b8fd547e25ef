"""The server and its clients, over real sockets of this machine."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgpack
import numpy as np
import pytest
import zmq
from gr00t.policy.server_client import BatchingOptions, PolicyClient, PolicyServer, ServerTimeoutError
from served import Echo, observation, serving

from arena_wire.gr00t import pack, unpack
from arena_wire.messages import WireLimits


def client_of(server: PolicyServer, **options) -> PolicyClient:
    return PolicyClient("127.0.0.1", server.port, **{"timeout_ms": 5000, **options})


def test_a_client_gets_what_the_policy_says():
    policy = Echo()
    with serving(policy) as server:
        client = client_of(server)
        action, info = client.get_action(observation(3.0, 4.0), {"noise_seeds": [7, 8]})
        assert action["arm"].dtype == np.float32
        assert action["arm"][:, 0].tolist() == [[3, 7, 2], [4, 8, 2]]
        assert info == {"seeds": [7, 8], "model": "echo"}
        assert client.get_modality_config() == policy.get_modality_config()
        assert client.reset() == {}
        assert policy.resets == 1
        assert client.ping()
        client.close()
        client.close()


def raw_exchange(server: PolicyServer, data: bytes) -> bytes:
    """Ask as any REQ socket would."""
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 5000)
        socket.connect(f"tcp://127.0.0.1:{server.port}")
        socket.send(data)
        return socket.recv()


def test_the_server_answers_nvidias_client_byte_for_byte():
    with serving(Echo()) as server:
        assert raw_exchange(server, b"\x81\xa8endpoint\xa4ping") == (
            b"\x82\xa6status\xa2ok\xa7message\xb1Server is running"
        )
        assert raw_exchange(server, b"\x82\xa8endpoint\xa5reset\xa4data\x81\xa7options\xc0") == b"\x80"
        assert raw_exchange(server, b"\x81\xa8endpoint\xa5dance") == b"\x81\xa5error\xb7Unknown endpoint: dance"
        assert raw_exchange(server, b"\x81\xa8endpoint\xa4kill") == b"\xc0"


def test_a_request_without_endpoint_asks_for_actions():
    with serving(Echo()) as server:
        answer = unpack(raw_exchange(server, pack({"data": {"observation": observation(1.0)}})))
        assert answer[0]["arm"].shape == (1, 2, 3)


def test_the_client_asks_nvidias_server_byte_for_byte():
    """A REP socket stands for it: it gets one frame, and answers with one."""
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        heard: list[bytes] = []

        def answer() -> None:
            for reply in (b"\x82\xa6status\xa2ok\xa7message\xb1Server is running", b"\x80"):
                heard.append(socket.recv())
                socket.send(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        client = PolicyClient("127.0.0.1", port, api_token="key")
        assert client.ping()
        assert client.reset() == {}
        thread.join()
        client.close()
    assert heard == [
        b"\x82\xa8endpoint\xa4ping\xa9api_token\xa3key",
        b"\x83\xa8endpoint\xa5reset\xa4data\x81\xa7options\xc0\xa9api_token\xa3key",
    ]


def test_requests_that_arrive_together_are_one_call_and_each_client_gets_its_entries():
    policy = Echo()
    policy.hold_s = 0.6
    with serving(policy) as server:
        clients = [client_of(server) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(clients[0].get_action, observation(0.0), {"noise_seeds": [0]})
            time.sleep(0.2)  # The other three arrive while the model works.
            others = [
                pool.submit(clients[i].get_action, observation(*[float(i)] * i), {"noise_seeds": [i * 10] * i})
                for i in (1, 2, 3)
            ]
            assert first.result()[0]["arm"][0, 0].tolist() == [0, 0, 1]
            for i, other in zip((1, 2, 3), others, strict=True):
                action, info = other.result()
                assert action["arm"][:, 0].tolist() == [[i, i * 10, 6]] * i
                assert info["seeds"] == [i * 10] * i
        assert policy.batch_sizes == [1, 6]
        for client in clients:
            client.close()


def test_clients_that_ask_again_and_again_are_waited_for():
    policy, both_have_asked = Echo(), threading.Barrier(2)
    with serving(policy, batching=BatchingOptions(wait_ms=100)) as server, ThreadPoolExecutor(2) as pool:

        def ask_often(client: PolicyClient) -> None:
            client.get_action(observation(1.0))
            both_have_asked.wait()
            for _ in range(6):
                client.get_action(observation(1.0))

        for future in [pool.submit(ask_often, client_of(server)) for _ in range(2)]:
            future.result()
    assert policy.batch_sizes.count(2) >= 3


def test_a_single_client_waits_for_nobody():
    with serving(Echo(), batching=BatchingOptions(wait_ms=5000)) as server:
        client = client_of(server, timeout_ms=4000)
        for _ in range(3):
            client.get_action(observation(1.0))
        client.close()


def test_a_batch_never_has_more_entries_than_it_may():
    policy = Echo()
    policy.hold_s = 0.6
    with serving(policy, batching=BatchingOptions(max_batch=3)) as server, ThreadPoolExecutor(4) as pool:
        first = pool.submit(client_of(server).get_action, observation(0.0))
        time.sleep(0.2)
        rest = [pool.submit(client_of(server).get_action, observation(1.0, 2.0)) for _ in range(3)]
        for future in (first, *rest):
            future.result()
    assert policy.batch_sizes == [1, 2, 2, 2]


def test_images_of_other_sizes_are_no_part_of_the_batch():
    policy = Echo()
    policy.hold_s = 0.6
    with serving(policy) as server, ThreadPoolExecutor(3) as pool:
        first = pool.submit(client_of(server).get_action, observation(0.0))
        time.sleep(0.2)
        rest = [pool.submit(client_of(server).get_action, observation(1.0, size=size)) for size in (4, 8)]
        for future in (first, *rest):
            future.result()
    assert policy.batch_sizes == [1, 1, 1]


def test_options_that_may_mean_all_of_a_batch_keep_a_request_by_itself():
    policy = Echo()
    policy.hold_s = 0.6
    with serving(policy) as server, ThreadPoolExecutor(3) as pool:
        first = pool.submit(client_of(server).get_action, observation(0.0))
        time.sleep(0.2)
        rest = [pool.submit(client_of(server).get_action, observation(1.0), {"client_id": i}) for i in "ab"]
        for future in (first, *rest):
            future.result()
    assert sorted(str(options) for options in policy.options[1:]) == ["{'client_id': 'a'}", "{'client_id': 'b'}"]


def test_the_error_of_one_request_reaches_only_its_client():
    policy = Echo()
    policy.hold_s = 0.6
    with serving(policy) as server, ThreadPoolExecutor(3) as pool:
        first = pool.submit(client_of(server).get_action, observation(0.0))
        time.sleep(0.2)
        good = pool.submit(client_of(server).get_action, observation(5.0))
        bad = pool.submit(client_of(server).get_action, observation(float("nan")))
        first.result()
        assert good.result()[0]["arm"][0, 0].tolist() == [5, 0, 1]
        with pytest.raises(RuntimeError, match=r"Server error: state.arm holds NaN"):
            bad.result()


def test_a_policy_that_forgets_entries_is_found_out():
    class Forgetful(Echo):
        def get_action(self, observation, options=None):
            action, info = super().get_action(observation, options)
            return {key: values[:1] for key, values in action.items()}, info

    policy = Forgetful()
    policy.hold_s = 0.6
    with serving(policy) as server, ThreadPoolExecutor(3) as pool:
        first = pool.submit(client_of(server).get_action, observation(0.0))
        time.sleep(0.2)
        rest = [pool.submit(client_of(server).get_action, observation(float(i))) for i in (1, 2)]
        first.result()
        # Together they cannot be told apart, so each was asked by itself in the end.
        assert [future.result()[0]["arm"][0, 0, 0] for future in rest] == [1, 2]


def test_a_client_that_asks_and_never_listens_blocks_nobody():
    with serving(Echo()) as server, zmq.Context() as context:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.connect(f"tcp://127.0.0.1:{server.port}")
        for _ in range(50):
            socket.send_multipart([b"", pack({"data": {"observation": observation(*range(32))}})])
        client = client_of(server)
        assert client.get_action(observation(9.0))[0]["arm"][0, 0, 0] == 9
        client.close()
        socket.close()


@pytest.mark.parametrize("token", [None, "", "wrong", "secre"])
def test_a_client_without_the_token_is_turned_away(token):
    with serving(Echo(), api_token="secret") as server:
        client = client_of(server, api_token=token)
        with pytest.raises(RuntimeError, match="Unauthorized: Invalid API token"):
            client.get_modality_config()
        with pytest.raises(RuntimeError, match="Unauthorized"):
            client.kill_server()
        client.close()
        friend = client_of(server, api_token="secret")
        assert friend.ping()
        friend.close()


def test_a_client_that_may_stops_the_server():
    with serving(Echo()) as server:
        client = client_of(server)
        client.kill_server()
        client.close()
        assert not server.running


@pytest.mark.parametrize("options", [{"host": "0.0.0.0"}, {"allow_kill": False}])
def test_a_server_that_anybody_can_reach_is_not_stopped_by_anybody(options):
    with serving(Echo(), **options) as server:
        client = client_of(server)
        with pytest.raises(RuntimeError, match="cannot be killed from outside"):
            client.kill_server()
        assert client.ping()
        client.close()


def test_with_a_token_even_a_public_server_can_be_stopped():
    with serving(Echo(), host="0.0.0.0", api_token="secret") as server:
        client = client_of(server, api_token="secret")
        client.kill_server()
        client.close()


GARBAGE = [b"", b"garbage", b"\xc1", b"\x92\x01\x02", pack({"endpoint": 3}), pack({"data": None}), pack({"data": [1]}),
           pack({"data": {"observation": {}}}), pack({"data": {"observation": {"state": {"arm": None}}}}),
           pack({"endpoint": ["ping"]}), pack({"endpoint": "reset", "data": {"a": 1}}), b"\x91" * 500]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_answered_with_an_error_and_the_server_goes_on(garbage):
    with serving(Echo()) as server:
        answer = msgpack.unpackb(raw_exchange(server, garbage))
        assert list(answer) == ["error"]
        assert answer["error"]
        client = client_of(server)
        assert client.ping()
        client.close()


def test_a_client_that_speaks_another_protocol_harms_nobody():
    import socket as sockets  # noqa: PLC0415  only this test needs them

    with serving(Echo()) as server:
        with sockets.create_connection(("127.0.0.1", server.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(f"tcp://127.0.0.1:{server.port}")
            dealer.send(b"no envelope")
            dealer.send_multipart([b"", b"two", b"parts"])
            assert dealer.poll(60_000)
            assert b"2 parts" in dealer.recv_multipart()[1]
        client = client_of(server)
        assert client.ping()
        client.close()


def test_a_client_learns_what_is_served():
    with serving(Echo(), serves={"model": "small"}) as server:
        client = client_of(server)
        assert client.call_endpoint("get_server_metadata", requires_input=False) == {"model": "small"}
        client.close()


def test_a_request_that_is_too_large_is_an_error_that_says_so():
    with serving(Echo(), limits=WireLimits(max_message_bytes=10_000)) as server:
        client = client_of(server)
        for size in (60, 1000):
            with pytest.raises(RuntimeError, match="at most 10000 are allowed"):
                client.get_action(observation(1.0, size=size))
        assert client.get_action(observation(1.0))[0]["arm"].shape == (1, 2, 3)
        client.close()


def test_an_answer_that_is_too_large_is_an_error_that_says_so():
    with serving(Echo()) as server:
        client = client_of(server, limits=WireLimits(max_message_bytes=200))
        with pytest.raises(RuntimeError, match="more bytes than the 200 that are allowed"):
            client.get_action(observation(1.0))
        client.close()


def test_an_answer_that_cannot_travel_is_an_error_of_its_client():
    class Odd(Echo):
        def reset(self, options=None):
            return {"odd": object()}

    with serving(Odd()) as server:
        client = client_of(server)
        with pytest.raises(RuntimeError, match="object may not travel"):
            client.reset()
        assert client.ping()
        client.close()


def test_a_server_that_is_not_there_is_an_error_within_the_time():
    client = PolicyClient("127.0.0.1", 1, timeout_ms=300)
    assert not client.ping()
    with pytest.raises(ServerTimeoutError, match=r"127.0.0.1:1 did not answer 'get_action' within 0.3 s"):
        client.get_action(observation(1.0))
    client.close()


def test_a_client_goes_on_when_its_server_comes_back():
    with serving(Echo()) as server:
        port = server.port
        client = client_of(server, timeout_ms=1000)
        client.get_action(observation(1.0))
    with pytest.raises(ServerTimeoutError):
        client.get_action(observation(1.0))
    with serving(Echo(), port=port):
        assert client.get_action(observation(2.0))[0]["arm"][0, 0, 0] == 2
    client.close()


def test_what_waits_when_the_server_stops_gets_an_answer():
    policy = Echo()
    policy.hold_s = 0.8
    with ThreadPoolExecutor(3) as pool:
        with serving(policy, batching=BatchingOptions(max_batch=1)) as server:
            first = pool.submit(client_of(server).get_action, observation(0.0))
            time.sleep(0.2)
            second = pool.submit(client_of(server).get_action, observation(1.0))
            time.sleep(0.2)
        first.result()
        with pytest.raises(RuntimeError, match="shutting down"):
            second.result()


def test_two_servers_cannot_share_a_port():
    with serving(Echo()) as server, pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        PolicyServer(Echo(), port=server.port)
