"""Where the shop's customers call."""

from __future__ import annotations

from django.urls import path
from orders import views

urlpatterns = [
    path("customers/<str:customer>/orders", views.orders),
    path("orders/<int:number>", views.order),
]
