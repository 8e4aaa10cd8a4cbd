# Prefill and decode workers, with torch and Triton. Build from the repository's root:
#   docker build -f docker/engine.Dockerfile -t baton-engine .
# TORCH_INDEX names a pip index with another torch build, for example one for CPUs only.
FROM python:3.12-slim AS build
ARG TORCH_INDEX=""
WORKDIR /src
RUN python -m venv /opt/baton
COPY pyproject.toml constraints.txt README.md LICENSE ./
# By itself first: the largest layer by far, and the one that changes least.
RUN grep -v '^triton==' constraints.txt > torch.txt && /opt/baton/bin/pip install --no-cache-dir \
    -c torch.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
COPY services services
COPY shared shared
COPY kernels kernels
RUN /opt/baton/bin/pip install --no-cache-dir -c torch.txt '.[engine]'

FROM python:3.12-slim
# Triton compiles the launchers of its kernels with the machine's C compiler.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --user-group --home-dir /home/baton --create-home baton
COPY --from=build /opt/baton /opt/baton
ENV PATH=/opt/baton/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /home/baton
ENTRYPOINT ["baton"]
CMD ["serve", "decode"]
