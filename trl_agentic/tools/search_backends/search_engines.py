"""
Web search through the APIs of Brave, Serper, Tavily and Bright Data.

Example:
    ```python
    backend = SerperSearch(parameters={"gl": "us"})  # the key is in SERPER_API_KEY
    search = make_search_tool(backend, top_k=5)
    ```
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlencode

import httpx

from .web_search import SearchApi, WebSearch


class BraveSearch(WebSearch):
    """
    [Brave's web search](https://api-dashboard.search.brave.com/api-reference/web/search/get); the key is in
    `BRAVE_API_KEY`. Takes the arguments of [`WebSearch`]; `parameters` may hold `country`, `search_lang`, `freshness`.
    """

    api = SearchApi(
        name="Brave",
        key_variable="BRAVE_API_KEY",
        base_url="https://api.search.brave.com/res/v1",
        max_results=20,
        results=("web", "results"),
        envelope=("query", "mixed"),
        url="url",
        text="description",
    )

    def _own_parameters(self, query: str, count: int) -> dict[str, Any]:
        return {"q": query, "count": count}

    def _request(self, query: str, count: int, key: str) -> httpx.Request:
        headers = {"X-Subscription-Token": key, "Accept": "application/json"}
        parameters = self.parameters | self._own_parameters(query, count)
        return httpx.Request("GET", f"{self.base_url}/web/search", params=parameters, headers=headers)


class SerperSearch(WebSearch):
    """
    [Serper's Google search](https://serper.dev); the key is in `SERPER_API_KEY`. Takes the arguments of [`WebSearch`];
    `parameters` may hold `gl`, `hl`, `tbs`.
    """

    api = SearchApi(
        name="Serper",
        key_variable="SERPER_API_KEY",
        base_url="https://google.serper.dev",
        max_results=100,
        results=("organic",),
        envelope=("searchParameters",),
        url="link",
        text="snippet",
    )

    def _own_parameters(self, query: str, count: int) -> dict[str, Any]:
        return {"q": query, "num": count}

    def _request(self, query: str, count: int, key: str) -> httpx.Request:
        body = self.parameters | self._own_parameters(query, count)
        return httpx.Request("POST", f"{self.base_url}/search", json=body, headers={"X-API-KEY": key})


class TavilySearch(WebSearch):
    """
    [Tavily's search](https://docs.tavily.com/api-reference/endpoint/search); the key is in
    `TAVILY_API_KEY`. Takes the arguments of [`WebSearch`]; `parameters` may hold `search_depth`, `topic`,
    `time_range`.
    """

    api = SearchApi(
        name="Tavily",
        key_variable="TAVILY_API_KEY",
        base_url="https://api.tavily.com",
        max_results=20,
        results=("results",),
        envelope=(),
        url="url",
        text="content",
    )

    def _own_parameters(self, query: str, count: int) -> dict[str, Any]:
        return {"query": query, "max_results": count}

    def _request(self, query: str, count: int, key: str) -> httpx.Request:
        body = self.parameters | self._own_parameters(query, count)
        return httpx.Request("POST", f"{self.base_url}/search", json=body, headers={"Authorization": f"Bearer {key}"})


class BrightDataSearch(WebSearch):
    """
    Bing through [Bright Data's SERP API](https://docs.brightdata.com/scraping-automation/serp-api/query-parameters/bing),
    with results [parsed to JSON](https://docs.brightdata.com/scraping-automation/serp-api/parsing-search-results), as
    the ARPO and APPO papers searched; the key is in `BRIGHTDATA_API_KEY`.

    Args:
        zone (`str`, *optional*):
            SERP zone of the account; `BRIGHTDATA_SERP_ZONE` of the environment by default.
        **options (`Any`):
            Arguments of [`WebSearch`]; `parameters` are Bing's, such as `cc` and `setLang`.

    Raises:
        ValueError: If there is no key or no zone.
    """

    api = SearchApi(
        name="Bright Data",
        key_variable="BRIGHTDATA_API_KEY",
        base_url="https://api.brightdata.com",
        max_results=50,
        results=("organic",),
        envelope=("general", "input"),
        url="link",
        text="description",
    )

    def __init__(self, zone: str | None = None, **options: Any):
        super().__init__(**options)
        self.zone = zone or os.environ.get("BRIGHTDATA_SERP_ZONE", "").strip()
        if not self.zone:
            raise ValueError("BrightDataSearch needs a SERP zone: pass zone, or set BRIGHTDATA_SERP_ZONE.")

    def _own_parameters(self, query: str, count: int) -> dict[str, Any]:
        return {"q": query, "count": count, "brd_json": 1}

    def _request(self, query: str, count: int, key: str) -> httpx.Request:
        page = "https://www.bing.com/search?" + urlencode(self._own_parameters(query, count) | self.parameters)
        body = {"zone": self.zone, "url": page, "format": "raw"}
        return httpx.Request("POST", f"{self.base_url}/request", json=body, headers={"Authorization": f"Bearer {key}"})
