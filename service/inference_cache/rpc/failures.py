"""What callers and the log learn of an error: the caller a status of our choice, the log where it came from."""

from __future__ import annotations

import logging
import secrets
import traceback
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from inference_cache.errors import InferenceCacheError, StoreError
from inference_cache.log import event
from inference_cache.metrics import Metrics
from inference_cache.rpc.convert import status_of

_log = logging.getLogger(__name__)


class Failures:
    """Turns errors into statuses, and counts them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def unexpected(self, rpc: str, error: BaseException) -> str:
        """Log an error that nobody foresaw; return the opaque id under which the log has it.

        The log gets the error's type and where it was raised. Its text stays out: it may quote what a caller sent.
        """
        error_id = secrets.token_hex(8)
        self._metrics.unexpected_error(rpc)
        raised = [f"{at.filename}:{at.lineno} {at.name}" for at in traceback.extract_tb(error.__traceback__)]
        event(_log, logging.ERROR, "unexpected_error", rpc=rpc, id=error_id, error=type(error).__name__, raised=raised)
        return error_id

    async def abort(self, rpc: str, error: Exception, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        """End a call with the status that stands for an error."""
        if isinstance(error, InferenceCacheError):
            code, detail = status_of(error)
            if isinstance(error, StoreError):
                self._metrics.store_error(rpc, error.reason)
        elif isinstance(error, DecodeError):
            code, detail = grpc.StatusCode.INTERNAL, "the message cannot be decoded"
        else:
            code, detail = grpc.StatusCode.INTERNAL, f"internal error, id {self.unexpected(rpc, error)}"
        self._metrics.rpc_error(rpc, code.name)
        await context.abort(code, detail)
