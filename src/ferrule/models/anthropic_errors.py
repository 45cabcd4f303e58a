"""What becomes of the exceptions of Anthropic's SDK."""

from __future__ import annotations

from typing import Final

from ferrule.models.failures import Verdicts

ANTHROPIC_ERRORS: Final[Verdicts] = {
    "AnthropicError": "refused",
    "APIError": "by_words",
    "APIConnectionError": "unavailable",
    "APITimeoutError": "unavailable",
    "APIResponseValidationError": "unavailable",
    "APIWebhookValidationError": "refused",
    "APIStatusError": "by_status",
    "BadRequestError": "refused",
    "AuthenticationError": "refused",
    "PermissionDeniedError": "refused",
    "NotFoundError": "refused",
    "RequestTimeoutError": "unavailable",
    "ConflictError": "unavailable",
    "PreconditionFailedError": "refused",
    "ContentTooLargeError": "refused",
    "UnprocessableEntityError": "refused",
    "RateLimitError": "by_status",
    "EnforcedSpendLimitReachedError": "refused",
    "RequestHeaderFieldsTooLargeError": "refused",
    "ClientClosedRequestError": "unavailable",
    "InternalServerError": "by_status",
    "HTTPNotImplementedError": "refused",
    "ServiceUnavailableError": "unavailable",
    "GatewayTimeoutError": "unavailable",
    "OverloadedError": "unavailable",
    "RetryableError": "unavailable",
    "CredentialsError": "refused",
    "WorkloadIdentityError": "refused",
    # Not the SDK's own, but let through by it: the connection in the midst of a stream, and events that are no JSON.
    "TransportError": "unavailable",
    "JSONDecodeError": "unavailable",
    "UnicodeDecodeError": "unavailable",
}
