# The controller as a static binary, in an image that holds nothing else but its licence and the roots of trust.
#
#   docker build -t ip-address-controller:latest .

# The version is that of rust-toolchain.toml.
FROM rust:1.99.1-slim-bookworm AS build
# Against musl, because glibc loads libraries at run time to look up a name, even where it is linked statically.
# musl-tools has the compiler for the parts of the cryptography that are written in C.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends musl-tools \
    && rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /source
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --release --locked -p controller --target "$(uname -m)-unknown-linux-musl" \
    && cp target/*-musl/release/ip-address-controller /

FROM scratch
ARG VERSION=unreleased
LABEL org.opencontainers.image.title="ip-address-controller" \
      org.opencontainers.image.description="Keeps IP addresses where workloads need them" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /source/LICENSE /ip-address-controller /
# A number, because Kubernetes can't tell from a name whether it means root.
USER 65532:65532
EXPOSE 8080 9999
ENTRYPOINT ["/ip-address-controller"]
