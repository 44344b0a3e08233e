"""The shop's HTTP API."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.views.decorators.http import require_http_methods

from orders import services

__all__ = ["order", "orders"]


@require_http_methods(["POST"])
def orders(request: HttpRequest, customer: str) -> HttpResponse:
    """Place an order; respond with its number."""
    if (wish := wanted(request, item=str, amount=int)) is None:
        return HttpResponseBadRequest("an order is {'item': text, 'amount': number}")
    return JsonResponse(services.place(customer, **wish).pk, safe=False, status=HTTPStatus.CREATED)


@require_http_methods(["PUT", "DELETE"])
def order(request: HttpRequest, number: int) -> HttpResponse:
    """Change or cancel an order."""
    if request.method == "DELETE":
        found = services.cancel(number)
    elif (wish := wanted(request, amount=int)) is None:
        return HttpResponseBadRequest("a change is {'amount': number}")
    else:
        found = services.change(number, **wish)
    return HttpResponse(status=HTTPStatus.NO_CONTENT if found else HTTPStatus.NOT_FOUND)


def wanted(request: HttpRequest, **kinds: Callable[..., Any]) -> dict[str, Any] | None:
    """Return the values in a request; None if one is missing or invalid."""
    try:
        given = json.loads(request.body)
        return {name: kind(given[name]) for name, kind in kinds.items()}
    except (ValueError, TypeError, KeyError):
        return None
