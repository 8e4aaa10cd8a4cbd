# Prefill and decode workers. Build from the repository's root:
#   docker build -f docker/engine.Dockerfile -t baton-engine .
# TORCH_INDEX names a pip index with another torch build, for example one for CPUs only; BASE may name
# the base by its digest.
ARG BASE=python:3.12-slim
FROM ${BASE} AS dependencies
ARG TORCH_INDEX=""
RUN python -m venv /opt/baton
WORKDIR /dependencies
COPY pyproject.toml constraints.txt README.md LICENSE ./
# torch by itself: the largest layer by far, and the one that changes least. With CUDA it brings the
# Triton that it was built for; without, there is none.
RUN grep -v '^triton==' constraints.txt > pinned.txt && /opt/baton/bin/pip install --no-cache-dir --quiet \
    --report /opt/baton/installed-torch.json -c pinned.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
# Then what else is depended on, with empty packages in place of the sources: a change of a source
# neither installs it again nor makes another layer of it, so a node that has it does not pull it again.
# The two reports of pip say where each package came from, and its hash.
RUN mkdir services shared kernels && touch services/__init__.py shared/__init__.py kernels/__init__.py baton_pd.py \
    && /opt/baton/bin/pip install --no-cache-dir --quiet --report /opt/baton/installed.json \
        -c pinned.txt '.[engine]' \
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
LABEL org.opencontainers.image.title="baton-engine" \
      org.opencontainers.image.description="Baton's prefill and decode workers" \
      org.opencontainers.image.licenses="Apache-2.0"
# A fresh volume takes its owner from the folder that it is mounted on.
RUN useradd --uid 10001 --user-group --home-dir /home/baton --create-home baton \
    && install --directory --owner=baton --group=baton /home/baton/.triton
# Triton compiles the launchers of its kernels with the machine's C compiler.
# hadolint ignore=DL3008
RUN if ls -d /opt/baton/lib/python3*/site-packages/triton; then \
    apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*; fi
COPY --from=project /opt/project /opt/baton
ENV PATH=/opt/baton/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /home/baton
ENTRYPOINT ["baton"]
CMD ["serve", "decode"]
