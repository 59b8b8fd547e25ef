# Isaac Lab Arena on MuJoCo, for machines with NVIDIA GPUs; it works without one too.
#
#     docker build --tag isaaclab-arena .
#     docker run --rm --gpus all --volume "$PWD/outputs:/home/arena/isaaclab-arena/outputs" isaaclab-arena \
#         run jobs/quickstart.json
#
# Nobody has built this image yet: hadolint reads it, and tests compare its steps with those of README.md.
FROM nvidia/cuda:12.8.1-base-ubuntu24.04

# Ubuntu keeps no older versions of its packages, so a pinned one could not be installed next month.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git libegl1 libgl1 make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1001 arena

USER 1001
WORKDIR /home/arena/isaaclab-arena

# The driver's own OpenGL films the viewport; cameras of policies need none.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,graphics,utility \
    PIP_NO_CACHE_DIR=1 \
    VIRTUAL_ENV=/home/arena/venv \
    PATH=/home/arena/venv/bin:$PATH

COPY --chown=1001:1001 . .
RUN python3 -m venv "$VIRTUAL_ENV" \
    && mkdir --parents outputs \
    && pip install -c constraints.txt torch==2.13.0 \
    && pip install -c constraints.txt -e submodules/Isaac-GR00T -e .

HEALTHCHECK --interval=10m --timeout=2m --start-period=1m CMD ["isaaclab-arena", "doctor"]
ENTRYPOINT ["isaaclab-arena"]
CMD ["--help"]
