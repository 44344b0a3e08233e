"""TaskBridge in a Django project: `INSTALLED_APPS = [..., "taskbridge.django"]`. Only this needs Django."""
