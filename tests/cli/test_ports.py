"""Which port a part of the demo gets."""

import socket

from controller.cli.demo.processes import free_port


def test_a_port_is_free_again_as_soon_as_its_server_has_ended() -> None:
    """The server closes its connection first, so that the connection lingers (TIME_WAIT) on its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            served, _ = server.accept()
            served.close()
            assert client.recv(1) == b""
        assert free_port(port) != port  # somebody listens there
    assert free_port(port) == port
