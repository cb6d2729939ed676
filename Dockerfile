# The server, with the simulator and the host build of the CUDA kernels. For NVIDIA GPUs build with
# --build-arg EXTRAS=grpc,metrics,telemetry,cli,cuda and run with --gpus all.
FROM python:3.11-slim AS build
ARG EXTRAS=grpc,metrics,telemetry,cli
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir build==1.3.0 && python -m build --wheel --outdir /wheels . \
    && pip wheel --no-cache-dir --wheel-dir /wheels -c constraints.txt "$(ls /wheels/umd_runtime-*.whl)[${EXTRAS}]"

FROM python:3.11-slim
RUN apt-get update && apt-get install --no-install-recommends -y g++ && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 umd && install -d -o umd /var/lib/umd
ARG EXTRAS=grpc,metrics,telemetry,cli
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "umd-runtime[${EXTRAS}]" && rm -r /wheels
USER umd
ENV UMD_STATE_DIR=/var/lib/umd GRPC_VERBOSITY=ERROR
VOLUME /var/lib/umd
EXPOSE 50051 9464
# The join line is in the first line of the log; the state directory keeps certificate and tokens.
ENTRYPOINT ["umd", "serve", "--listen", "0.0.0.0:50051", "--auto-tls", "--metrics", "0.0.0.0:9464"]
