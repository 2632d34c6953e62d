"""Rows and vectors from models, at endpoints that speak as OpenAI's do.

| module | what it knows |
| --- | --- |
| `chat` | `ModelEnricher`: a prompt with columns in it, and a row as the answer; the JSON schema of a row |
| `embeddings` | `EmbeddingEnricher`: a vector for each text, many texts in a request |
| `endpoint` | what both have: the address, the API key, what a request weighs, and what no message shows |
| `tokens` | tokens and dollars: estimates that learn from answers |

Requests, connections, limits and the errors of statuses are those of `HttpEnricher`.
"""

from enrichers.models.chat import ModelEnricher
from enrichers.models.embeddings import EmbeddingEnricher

__all__ = ["EmbeddingEnricher", "ModelEnricher"]
