# The gateway and the command line: no torch. Build from the repository's root:
#   docker build -f docker/control.Dockerfile -t baton-control .
FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/baton
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY services services
COPY shared shared
COPY kernels kernels
RUN /opt/baton/bin/pip install --no-cache-dir -c constraints.txt '.[gateway,autoscaler]'

FROM python:3.12-slim
RUN useradd --uid 10001 --user-group --home-dir /home/baton --create-home baton \
    && install --directory --owner=baton --group=baton --mode=0700 /cell
COPY --from=build /opt/baton /opt/baton
ENV PATH=/opt/baton/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /home/baton
EXPOSE 8000
# SIGTERM drains: nothing may stand between it and the process.
ENTRYPOINT ["baton"]
CMD ["serve", "gateway"]
