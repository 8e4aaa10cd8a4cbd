# The gateway and the command line: no torch. Build from the repository's root:
#   docker build -f docker/control.Dockerfile -t baton-control .
# BASE may name the base by its digest. EXTRAS=gateway,autoscaler makes the autoscaler's image:
# the same with the Kubernetes client.
ARG BASE=python:3.12-slim
FROM ${BASE} AS dependencies
ARG EXTRAS=gateway
RUN python -m venv /opt/baton
# What is depended on comes first, with empty packages in place of the sources: a change of a source
# neither installs it again nor makes another layer of it, so a node that has it does not pull it again.
# installed.json says where each package came from, and its hash.
WORKDIR /dependencies
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir services shared kernels && touch services/__init__.py shared/__init__.py kernels/__init__.py baton_pd.py \
    && /opt/baton/bin/pip install --no-cache-dir --quiet --report /opt/baton/installed.json \
        -c constraints.txt ".[${EXTRAS}]" \
    && /opt/baton/bin/pip uninstall --yes baton-pd

FROM dependencies AS project
RUN /opt/baton/bin/pip install --no-cache-dir -c constraints.txt setuptools
WORKDIR /src
COPY pyproject.toml README.md LICENSE baton_pd.py ./
COPY services services
COPY shared shared
COPY kernels kernels
RUN /opt/baton/bin/pip install --no-cache-dir --no-deps --no-build-isolation --prefix /opt/project .

FROM dependencies
LABEL org.opencontainers.image.title="baton-control" \
      org.opencontainers.image.description="Baton's gateway and command line" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --home-dir /home/baton --create-home baton \
    && install --directory --owner=baton --group=baton --mode=0700 /cell
COPY --from=project /opt/project /opt/baton
ENV PATH=/opt/baton/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /home/baton
EXPOSE 8000
# SIGTERM drains: nothing may stand between it and the process.
ENTRYPOINT ["baton"]
CMD ["serve", "gateway"]
