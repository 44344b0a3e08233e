# The image of every service: workers, the migration, Flower, the dashboard, and `taskbridge` commands.

FROM python:3.12-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
COPY pyproject.toml constraints.txt ./
RUN pip install -c constraints.txt hatchling && python -m venv --without-pip /opt/taskbridge
# What it depends on is a layer of its own, so that a change of the code does not install it again.
RUN python -c "import tomllib; \
        project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
        extras = project['optional-dependencies']; \
        print(*project['dependencies'], *extras['cli'], *extras['web'], 'flower', 'psycopg[binary]', sep='\n')" \
        > requirements.txt \
    && pip --python /opt/taskbridge install -c constraints.txt -r requirements.txt
COPY README.md LICENSE ./
COPY migrations migrations
COPY taskbridge taskbridge
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && pip --python /opt/taskbridge install --no-deps /wheels/*.whl

FROM python:3.12-slim
RUN useradd --system --uid 10001 --user-group --home-dir /srv/taskbridge --create-home taskbridge
COPY --from=build /opt/taskbridge /opt/taskbridge
WORKDIR /srv/taskbridge
COPY celeryconfig.py ./
# Modules that lie in the working directory can be named in TASKBRIDGE_PIPELINES.
ENV PATH=/opt/taskbridge/bin:$PATH PYTHONPATH=/srv/taskbridge PYTHONUNBUFFERED=1
USER taskbridge
# No shell between the engine and Celery: a SIGTERM must reach it, so that it ends the batch in hand.
CMD ["celery", "-A", "taskbridge", "worker", "--loglevel", "INFO"]
