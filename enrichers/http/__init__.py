"""Rows from an HTTP service, through aiohttp.

| module | what it knows |
| --- | --- |
| `enricher` | `HttpEnricher`: its arguments |
| `exchange` | a lookup from key to row: request, answer, errors; a batch of them |
| `request_plan`, `url_parts`, `template` | what is sent for a key, made ready once |
| `keys` | how a key is written in a URL, in a header, in JSON |
| `headers`, `oauth2`, `proxies` | headers that expire; tokens; proxies of the environment |
| `session` | the session: connections, redirects, bounded bodies |
| `answers` | what is in an answer: JSON, rows, the entries of a batch |
| `errors`, `error_bodies` | what statuses, bodies of refusals and aiohttp's errors mean |
| `limit_headers`, `header_values` | what headers say about the limits of the service |
| `budget_reports` | what answers report to the budget of the lookup |
"""

from asyncio_operator.enricher import needs

with needs("HttpEnricher", "aiohttp", "http"):
    import aiohttp  # noqa: F401

from enrichers.http.enricher import HttpEnricher
from enrichers.http.oauth2 import OAuth2

__all__ = ["HttpEnricher", "OAuth2"]
