"""TaskBridge in a Django project: `INSTALLED_APPS = [..., "taskbridge.django"]`. Nothing else here knows of Django."""
