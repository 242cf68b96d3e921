from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc

from inference_cache._pb import inferencecache_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["InferenceCache"].full_name


@dataclass
class Canned:
    """A server with prepared answers that remembers what it was asked."""

    address: str = ""
    asked: list[Any] = field(default_factory=list)
    route: pb.LookupRouteResponse = field(default_factory=pb.LookupRouteResponse)
    cache_state: pb.GetCacheStateResponse = field(default_factory=pb.GetCacheStateResponse)
    refusal: str = ""
    refusal_code: grpc.StatusCode = grpc.StatusCode.PERMISSION_DENIED

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the two methods that the command line calls."""
        lookup = grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(request, context, self.route),
            request_deserializer=pb.LookupRouteRequest.FromString,
            response_serializer=pb.LookupRouteResponse.SerializeToString,
        )
        state = grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(request, context, self.cache_state),
            request_deserializer=pb.GetCacheStateRequest.FromString,
            response_serializer=pb.GetCacheStateResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"LookupRoute": lookup, "GetCacheState": state})

    def _answer(self, request: Any, context: grpc.ServicerContext, answer: Any) -> Any:
        self.asked.append(request)
        if self.refusal:
            context.abort(self.refusal_code, self.refusal)
        return answer
