# The stable commands of this repository. `.ci/run` uses only these.

set shell := ["bash", "-euo", "pipefail", "-c"]

cache := env("XDG_CACHE_HOME", home_directory() / ".cache") / "ip-address-controller"

# The folder for Cargo's results, which all checkouts of this user share.
export CARGO_TARGET_DIR := `tools/target-folder`

deny_version := "0.20.2"
mdbook_version := "0.5.4"
mutants_version := "27.1.0"

# The requests of the controller, from the audit logs of the tests' apiservers.
audit := cache / "audit"

# What every command for tests selects. With the same crates and features, cargo compiles nothing twice.
everything := "--locked --workspace --features controller/failpoints"
# Tests that need servers. `cargo test` and `--all-targets` skip them.
tests_on_servers := "--test certify --test e2e --test apiserver --test rights"
e2e_tests := everything + " --test e2e"

# Lists the commands.
default:
    @just --list --unsorted

# Builds everything that `.ci/run` needs. All builds run at the same time, because each often uses only one core.
[parallel]
prepare: tools _tests _clippy _simulator _deny _mdbook

# Checks format, lints, licences, duplicate versions, generated files, alerts and docs. Run `just tools` once before it.
[parallel]
check: _rust _dependencies _alerts _dashboard _docs-hold _workflows _structure

# Runs all tests that need no server.
test:
    tools/run-tests --jobs 2 -- {{everything}}

# Runs the tests whose name contains NAME, and builds only their test binaries.
test-one name:
    @EVERYTHING="{{everything}}" tools/test-one "{{name}}"

# Builds the servers of the testbed into a cache; prints their folder as the last line.
tools:
    tools/build

# Builds the release binary; prints its path as the last line.
build:
    cargo build --release --locked -p controller
    @# The release must not contain code that injects faults. `just check` looks at its features.
    @! grep -q "stopping at a failpoint" "$CARGO_TARGET_DIR/release/ip-address-controller"
    @echo "$CARGO_TARGET_DIR/release/ip-address-controller"

# Starts or stops a control plane for manual experiments: `up` or `down`.
testbed action:
    @cargo build --quiet {{everything}} --bin testbed
    @"$CARGO_TARGET_DIR/debug/testbed" {{action}}

# Runs the fake clouds for manual experiments.
fakes:
    @cargo build --quiet {{everything}} --bin testbed
    @"$CARGO_TARGET_DIR/debug/testbed" fakes

# Runs tests on the real control plane. With filter `capi`: 200 Clusters at once; `upgrade`: UPGRADES switches each way. Without a filter, tests that kill the controller do so at each third request, or at each KILL_EVERY.
e2e filter="": tools _packaging-is-generated (_baseline filter) && (_rights filter)
    rm -rf {{audit}} && mkdir -p {{audit}}
    KILL_EVERY="${KILL_EVERY:-{{ if filter == "" { "3" } else { "1" } }}}" CLUSTERS="${CLUSTERS:-{{ if filter == "capi" { "200" } else { "20" } }}}" AUDIT_FOLDER={{audit}} tools/run-tests --jobs {{ if filter == "capi" { "1" } else { "7" } }} --filter "{{filter}}" -- {{e2e_tests}} --test apiserver

# Builds release 0.1.0 for the upgrade tests.
_baseline filter:
    @if [[ -z "{{filter}}" || "{{filter}}" == upgrade* ]]; then tools/baseline; fi

# Compares the controller's permissions with those that all tests together have used.
_rights filter:
    @if [[ -z "{{filter}}" ]]; then \
      AUDIT_FOLDER={{audit}} cargo test {{everything}} --test rights -- --nocapture; \
    else echo "skipped the check of the controller's permissions: it needs all tests"; fi

# Runs the simulator: `N` seeds, `replay SEED` for the log of one seed, or `N power` to check that it detects known defects.
sim *arguments="200": _simulator
    @"$CARGO_TARGET_DIR/release/sim" {{arguments}}

# Checks every state of the protocol of lease, journal and fence, with three addresses.
model:
    cargo test --release --locked -p plan --test protocol -- --ignored --nocapture

# Runs the planner's unit tests on mutants of the planner. Each mutant must fail a test.
mutants: _mutants
    {{cache}}/cargo-mutants-{{mutants_version}}/bin/cargo-mutants mutants --package plan --file 'crates/plan/src/{journal,leadership,moves,planner}.rs' --cargo-arg=--lib --output {{cache}}

# Tests the fake clouds with the vendors' own clients, and prints a table.
certify:
    cargo test {{everything}} --test certify -- --nocapture --test-threads 1

# Runs the contract tests of all drivers on their servers, and prints a table of cases and drivers.
contract:
    cargo test {{everything}} --test contract --test records -- --nocapture --include-ignored --test-threads 1

# Runs a benchmark: `plan`, `instructions`, `failover`, `idle`, `scale`, `annotations`, `soak` or `flipop` (the last line is JSON), or `clouds` (prints a table).
bench name:
    @just _bench-{{name}}

_bench-plan:
    cargo bench --locked -p controller --bench plan

# Counts the instructions of a plan with valgrind, which finds the measured function by its symbol.
_bench-instructions:
    CARGO_PROFILE_BENCH_STRIP=none cargo bench --locked -p plan --bench instructions

_bench-failover: tools
    cargo test {{e2e_tests}} -- --ignored --nocapture a_thousand | grep -v '^$\|^test \|^running'

# Moves 1,000 addresses at once in each cloud, half of them from dead VMs, with the real rate limits and in real time.
_bench-clouds: tools build
    CONTROLLER_BINARY="$CARGO_TARGET_DIR/release/ip-address-controller" cargo test {{e2e_tests}} -- --ignored --nocapture --test-threads 1 mass_failover | grep '^|'

# Measures calls and memory of the release binary when nothing changes, in a small and a large cluster.
_bench-idle: tools build
    CONTROLLER_BINARY="$CARGO_TARGET_DIR/release/ip-address-controller" cargo test {{e2e_tests}} -- --include-ignored --nocapture --test-threads 1 n12_a_settled five_hundred an_idle_leader | sed 's/^test .* \.\.\. //' | grep -v '^$\|^ok$\|^test \|^running'

# Measures memory and latency of the release binary in the largest cluster: 15,000 nodes, 150,000 pods, 1,000 pools.
_bench-scale: tools build
    CONTROLLER_BINARY="$CARGO_TARGET_DIR/release/ip-address-controller" cargo test {{e2e_tests}} -- --ignored --nocapture in_the_largest_cluster | grep '^{'

# Compares the memory for 1,000 pods with and without annotations of 250 kB.
_bench-annotations: tools build
    CONTROLLER_BINARY="$CARGO_TARGET_DIR/release/ip-address-controller" cargo test {{e2e_tests}} -- --ignored --nocapture large_annotations | grep '^{'

# Measures memory and loop lag for an hour of changes in a tenth of the largest cluster.
_bench-soak: tools build
    CONTROLLER_BINARY="$CARGO_TARGET_DIR/release/ip-address-controller" cargo test {{e2e_tests}} -- --ignored --nocapture while_the_cluster_changes | grep '^{'

# Compares FLIPOP with our release binary, one after the other, on equal control planes and accounts.
_bench-flipop: tools build
    CONTROLLER_BINARY="$CARGO_TARGET_DIR/release/ip-address-controller" cargo test {{e2e_tests}} -- --ignored --nocapture side_by_side | sed 's/^test .* \.\.\. //' | grep -v '^$\|^ok$\|^test \|^running'

# Builds the container image without pulling one; prints the path of the binary in it as the last line.
image:
    tools/image

# Builds the book and checks its internal links; prints the path of its first page as the last line.
docs: _mdbook
    @tools/book {{cache}}/mdbook-{{mdbook_version}}/bin/mdbook {{cache}}/book

# Checks dependencies for known vulnerabilities. Downloads a database, so it is not part of `just check`.
advisories: _deny
    {{cache}}/cargo-deny-{{deny_version}}/bin/cargo-deny --log-level error check advisories

# Runs the tests and benches that take too long for every change; continues after a part that fails.
nightly:
    tools/nightly

# Writes the generated files.
generate: tools
    REGENERATE=1 cargo test --quiet --locked -p api -p plan --lib generated
    monitoring/dashboard-configmap > monitoring/grafana-dashboard-configmap.yaml
    tools/render
    tools/compat

_simulator:
    @cargo build --quiet --release --locked -p sim

# Fails if the plain manifests differ from what the chart renders.
_packaging-is-generated: tools
    tools/render --check

# Draws docs/images/dashboard.svg from the query results of a real Prometheus.
_picture: tools
    PICTURE="$PWD/docs/images/dashboard.svg" cargo test --quiet {{e2e_tests}} -- n14_

# Checks format and lints, and that files generated by the code are up to date.
_rust: _clippy
    cargo fmt --all --check
    cargo test --quiet {{everything}} --lib --test dependencies -- generated dependencies

# Clippy has its own target directory, so that it does not wait for other builds.
_clippy:
    cargo clippy --target-dir "$CARGO_TARGET_DIR/clippy" {{everything}} --all-targets -- -D warnings
    cargo clippy --target-dir "$CARGO_TARGET_DIR/clippy" {{everything}} {{tests_on_servers}} -- -D warnings
    @# The controller with the features of a release. `just nightly` builds it.
    cargo clippy --target-dir "$CARGO_TARGET_DIR/clippy" --locked -p controller -- -D warnings

_tests:
    cargo test --no-run {{everything}}
    cargo test --no-run {{everything}} {{tests_on_servers}}
    tools/baseline

# Checks licences, sources and duplicate versions of dependencies, that the planner needs no client of Kubernetes, and that
# the release has no code that injects faults.
_dependencies: _deny
    cargo fetch --locked
    {{cache}}/cargo-deny-{{deny_version}}/bin/cargo-deny --offline --log-level error check bans licenses sources
    @echo "skipped the check for known vulnerabilities, which downloads a database: run just advisories"
    ! cargo tree --locked -p plan --edges normal --prefix none | grep -E '^(kube|tokio|k8s-openapi)'
    ! cargo tree --locked -p controller --edges normal --prefix none --format '{p} {f}' | grep -E '^(controller|plan) [^)]*[)].*(sabotage|simulation|failpoints)'

_deny: (_install "cargo-deny" deny_version)

_mdbook: (_install "mdbook" mdbook_version "--no-default-features --features search")

_mutants: (_install "cargo-mutants" mutants_version)

# Installs a program from crates.io into the cache.
_install name version options="":
    @[ -x {{cache}}/{{name}}-{{version}}/bin/{{name}} ] || CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR={{cache}}/{{name}}-build cargo install --debug --quiet --locked --root {{cache}}/{{name}}-{{version}} {{options}} {{name}}@{{version}}
    @rm -rf {{cache}}/{{name}}-build

# Tests the alerts and Argo CD's health script.
_alerts:
    PATH="$(tools/build --where):$PATH" monitoring/tests/run
    @monitoring/tests/argocd-health

# Fails on import cycles and long commit subjects; lists long files and functions.
_structure:
    @tools/structure
    @tools/commit-subjects

# Fails if the docs disagree with the examples, the reasons in the code or the compatibility tests.
_docs-hold:
    @tools/examples-in-docs
    @tools/plain-words
    @tools/compat --check

# Lints the workflows under .github.
_workflows:
    @"$(tools/build --where)/actionlint"

# Fails if the dashboard is not valid JSON, or if its ConfigMap is out of date.
_dashboard:
    @python3 -m json.tool monitoring/grafana-dashboard.json >/dev/null
    @monitoring/dashboard-configmap | diff - monitoring/grafana-dashboard-configmap.yaml >/dev/null || { echo "monitoring/grafana-dashboard-configmap.yaml is out of date: run \`just generate\`" >&2; exit 1; }
