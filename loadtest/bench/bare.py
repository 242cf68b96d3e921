"""The least that a server of this contract can do: receive a lookup, answer always the same.

A ``grpc.aio`` server with the generated classes and without anything of ours, on the event loop that the real
server uses. Usage: ``python -m loadtest.bench.bare FILE_WITH_THE_RESPONSE``.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import grpc
import uvloop

from inference_cache._pb import inferencecache_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["InferenceCache"].full_name


async def serve(response: pb.LookupRouteResponse) -> None:
    """Serve on a free port, announced on standard output, until SIGTERM."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    server = grpc.aio.server()

    async def answer(_: pb.LookupRouteRequest, __: object) -> pb.LookupRouteResponse:
        return response

    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=pb.LookupRouteRequest.FromString,
        response_serializer=pb.LookupRouteResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"LookupRoute": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"event": "startup", "grpc_addr": f"127.0.0.1:{port}"}), flush=True)
    await told.wait()
    await server.stop(None)


if __name__ == "__main__":
    uvloop.run(serve(pb.LookupRouteResponse.FromString(Path(sys.argv[1]).read_bytes())))
