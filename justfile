# The commands that stay stable. `.ci/run` is made of these and nothing else.

set shell := ["bash", "-euo", "pipefail", "-c"]

cache := env("XDG_CACHE_HOME", home_directory() / ".cache") / "ip-address-controller"

# Build results live outside the checkout, so that a clean clone on the same machine starts warm.
export CARGO_TARGET_DIR := env("CARGO_TARGET_DIR", cache / "target")

deny_version := "0.20.2"
mdbook_version := "0.5.4"
mutants_version := "27.1.0"

# What the tests' apiservers were asked by the controller.
audit := cache / "audit"

# What is built together for tests on real servers. Every such command selects the same crates, so that the features of
# their dependencies are the same and nothing is compiled twice.
servers := "-p controller -p testbed"
e2e_tests := "--locked " + servers + " --features controller/failpoints --test e2e"
apiserver_tests := "--locked -p sim " + servers + " --test apiserver"

# Lists the commands.
default:
    @just --list --unsorted

# Format, lint, licences and duplicate versions, generated files, alerts, docs. Needs `just tools` for promtool.
check: _deny _alerts _dashboard _docs-hold _workflows _structure
    cargo fetch --locked
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings
    cargo clippy {{e2e_tests}} -- -D warnings
    {{cache}}/cargo-deny-{{deny_version}}/bin/cargo-deny --offline --log-level error check bans licenses sources
    @echo "advisories are not checked: cargo deny check advisories does, and loads their database"
    ! cargo tree --locked -p plan --edges normal --prefix none | grep -E '^(kube|tokio|k8s-openapi)'
    cargo test --quiet --locked --workspace --lib --test dependencies -- generated dependencies

# Everything that needs no server.
test:
    cargo test --workspace --locked

# One test of any kind, by a part of its name; builds only the kind of test binaries that it is in.
test-one name:
    @E2E_TESTS="{{e2e_tests}}" APISERVER_TESTS="{{apiserver_tests}}" tools/test-one "{{name}}"

# Builds the servers of the testbed into a cache; the last line is their folder.
tools:
    tools/build

# The release binary; the last line is its path.
build:
    cargo build --release --locked -p controller
    @# What breaks the controller on purpose must not be in it: neither asked for, nor there.
    @! cargo tree --locked -p controller --edges normal --prefix none --format '{p} {f}' | grep -E '^(controller|plan) [^)]*[)].*(sabotage|simulation|failpoints)'
    @! grep -q "stopping at a failpoint" "$CARGO_TARGET_DIR/release/ip-address-controller"
    @echo "$CARGO_TARGET_DIR/release/ip-address-controller"

# A control plane for trying things: `up` or `down`.
testbed action:
    @cargo build --quiet --locked {{servers}} --bin testbed
    @"$CARGO_TARGET_DIR/debug/testbed" {{action}}

# The fake clouds, for trying things by hand.
fakes:
    @cargo build --quiet --locked {{servers}} --bin testbed
    @"$CARGO_TARGET_DIR/debug/testbed" fakes

# Tests on the real control plane. With the filter `capi`, two hundred Clusters at once; with `upgrade`, UPGRADES switches each way.
e2e filter="": tools _packaging-is-generated (_baseline filter) && (_rights filter)
    rm -rf {{audit}} && mkdir -p {{audit}}
    CLUSTERS="${CLUSTERS:-{{ if filter == "capi" { "200" } else { "20" } }}}" AUDIT_FOLDER={{audit}} tools/run-tests --jobs {{ if filter == "capi" { "1" } else { "3" } }} --filter "{{filter}}" -- {{e2e_tests}}
    tools/run-tests --may-be-none --filter "{{filter}}" -- {{apiserver_tests}}

# Builds release 0.1.0 for the tests of upgrades.
_baseline filter:
    @if [[ -z "{{filter}}" || "{{filter}}" == upgrade* ]]; then tools/baseline; fi

# Holds the rights that the controller has against those that all tests together have used.
_rights filter:
    @if [[ -z "{{filter}}" ]]; then \
      AUDIT_FOLDER={{audit}} cargo test --locked {{servers}} --features controller/failpoints --test rights -- --nocapture; \
    else echo "the controller's rights are judged only after all tests"; fi

# Simulated runs: so many seeds, or `replay SEED` for the story of one, or `N power` to break the controller on purpose.
sim *arguments="200":
    @cargo build --quiet --release --locked -p sim
    @"$CARGO_TARGET_DIR/release/sim" {{arguments}}

# Goes through every state of the protocol of lease, journal and fence, with three addresses.
model:
    cargo test --release --locked -p plan --test protocol -- --ignored --nocapture

# Changes the planner in one place at a time and runs its unit tests: each change must fail one.
mutants: _mutants
    {{cache}}/cargo-mutants-{{mutants_version}}/bin/cargo-mutants mutants --package plan --file 'crates/plan/src/{journal,leadership,moves,planner}.rs' --cargo-arg=--lib --output {{cache}}

# Holds the fake clouds against the vendors' own clients, and prints the table.
certify:
    cargo test --locked --workspace --test certify -- --nocapture --test-threads 1

# What every address driver must do, on its server; prints the table of cases and drivers.
contract:
    cargo test --locked --workspace --test contract --test records -- --nocapture --include-ignored --test-threads 1

# A measurement: `plan`, `failover`, `idle` or `flipop`, whose last line is JSON, or `clouds`, which prints a table.
bench name:
    @just _bench-{{name}}

_bench-plan:
    cargo bench --locked -p controller --bench plan

_bench-failover: tools
    cargo test {{e2e_tests}} -- --ignored --nocapture a_thousand | grep -v '^$\|^test \|^running'

# A thousand addresses at once in each cloud, half of them off dead machines, under the real limits and in real time.
_bench-clouds: tools build
    CONTROLLER_BINARY="$CARGO_TARGET_DIR/release/ip-address-controller" cargo test {{e2e_tests}} -- --ignored --nocapture --test-threads 1 a_crowd_fails_over | grep '^|'

# What a settled controller costs: calls and memory of the release binary, small and large.
_bench-idle: tools build
    CONTROLLER_BINARY="$CARGO_TARGET_DIR/release/ip-address-controller" cargo test {{e2e_tests}} -- --include-ignored --nocapture --test-threads 1 n12_a_settled five_hundred | sed 's/^test .* \.\.\. //' | grep -v '^$\|^ok$\|^test \|^running'

# FLIPOP's own binary and our release binary, one after the other, on equal control planes and accounts.
_bench-flipop: tools build
    CONTROLLER_BINARY="$CARGO_TARGET_DIR/release/ip-address-controller" cargo test {{e2e_tests}} -- --ignored --nocapture side_by_side | sed 's/^test .* \.\.\. //' | grep -v '^$\|^ok$\|^test \|^running'

# The container image, without pulling one; the last line is the path of the binary in it.
image:
    tools/image

# Makes the book and checks its internal links; the last line is its first page.
docs: _mdbook
    @tools/book {{cache}}/mdbook-{{mdbook_version}}/bin/mdbook {{cache}}/book

# Known vulnerabilities of dependencies. Loads their database, so it is no part of `just check`.
advisories: _deny
    {{cache}}/cargo-deny-{{deny_version}}/bin/cargo-deny --log-level error check advisories

# What is too long for every change, each part with its time; goes on after a part that fails.
nightly:
    tools/nightly

# Writes the generated files.
generate: tools
    REGENERATE=1 cargo test --quiet --locked -p api -p plan --lib generated
    monitoring/dashboard-configmap > monitoring/grafana-dashboard-configmap.yaml
    tools/render
    tools/compat

# The plain manifests are what the chart renders to.
_packaging-is-generated: tools
    tools/render --check

# Draws docs/images/dashboard.svg from what a real Prometheus answers.
_picture: tools
    PICTURE="$PWD/docs/images/dashboard.svg" cargo test --quiet {{e2e_tests}} -- n14_

_deny: (_install "cargo-deny" deny_version)

_mdbook: (_install "mdbook" mdbook_version)

_mutants: (_install "cargo-mutants" mutants_version)

# Installs a program from crates.io into the cache.
_install name version:
    @[ -x {{cache}}/{{name}}-{{version}}/bin/{{name}} ] || CARGO_TARGET_DIR={{cache}}/{{name}}-build cargo install --debug --quiet --locked --root {{cache}}/{{name}}-{{version}} {{name}}@{{version}}
    @rm -rf {{cache}}/{{name}}-build

# Tests the alerts, and what Argo CD is told.
_alerts:
    PATH="$(tools/build --where):$PATH" monitoring/tests/run
    @monitoring/tests/argocd-health

# Imports between files go one direction; long files and functions are listed.
_structure:
    @tools/structure
    @tools/commit-subjects

# What the docs say is there.
_docs-hold:
    @tools/examples-in-docs
    @tools/compat --check

# The workflows under .github can be run.
_workflows:
    @"$(tools/build --where)/actionlint"

# The dashboard can be read, and its ConfigMap is made of it as it stands.
_dashboard:
    @python3 -m json.tool monitoring/grafana-dashboard.json >/dev/null
    @monitoring/dashboard-configmap | diff - monitoring/grafana-dashboard-configmap.yaml >/dev/null || { echo "monitoring/grafana-dashboard-configmap.yaml is out of date: run \`just generate\`" >&2; exit 1; }
