"""What becomes of the exceptions of OpenAI's SDK."""

from __future__ import annotations

from typing import Final

from ferrule.models.failures import Verdicts

OPENAI_ERRORS: Final[Verdicts] = {
    "OpenAIError": "refused",
    "APIError": "by_words",
    "APIConnectionError": "unavailable",
    "APITimeoutError": "unavailable",
    "APIResponseValidationError": "unavailable",
    "APIStatusError": "by_status",
    "BadRequestError": "refused",
    "AuthenticationError": "refused",
    "OAuthError": "refused",
    "PermissionDeniedError": "refused",
    "NotFoundError": "refused",
    "ConflictError": "unavailable",
    "UnprocessableEntityError": "refused",
    "RateLimitError": "by_status",
    "InternalServerError": "by_status",
    "LengthFinishReasonError": "refused",
    "ContentFilterFinishReasonError": "refused",
    "InvalidWebhookSignatureError": "refused",
    "SubjectTokenProviderError": "refused",
    "WebSocketConnectionClosedError": "unavailable",
    "WebSocketQueueFullError": "unavailable",
    # Not the SDK's own, but let through by it: the connection, and answers that are no JSON.
    "TransportError": "unavailable",
    "JSONDecodeError": "unavailable",
    "UnicodeDecodeError": "unavailable",
}
