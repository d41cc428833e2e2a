# kruise-rs: `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:

E2E   := e2e/run
# tests may name a part of their names: make e2e E2E_ARGS=restart
E2E_ARGS ?=
# KEEP=1 leaves the cluster running
KEEP  ?=
# The build of the image under test: without the ten minutes of link-time optimisation. `make soak` tests the build of releases.
QUICKER = $${KRUISE_E2E_PROFILE:-trial}
# The seed of the property tests (`proptest!`): the same in each `make test`, so that only a change can break it. `make soak` takes
# another one each time, with many more cases, and prints the line that runs the same cases again.
SEED    = $${PROPTEST_RNG_SEED:-1}

# the versions that a cluster is made of (docs/versions.md): make e2e KUBE=1.37 CONTAINERD=2
KUBE       ?=
CONTAINERD ?=
export KRUISE_E2E_KUBE := $(KUBE)
export KRUISE_E2E_CONTAINERD := $(CONTAINERD)

.PHONY: help demo record test others site site-check check check-time image manifests bench bench-load bench-scale e2e versions soak cluster cluster-down clean

help: ## Show this help
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  \1|\2/' | column -t -s '|' 2>/dev/null \
	  || grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST)
	@echo "  Variables: KEEP=1 leaves the cluster running; E2E_ARGS=name picks end-to-end tests by name;"
	@echo "  KUBE=1.37 CONTAINERD=2 make a cluster of these versions (1.34 and 1.6 without them)."

demo: ## Restart a container on a real node and watch it (KEEP=1 leaves everything running)
	@export KRUISE_E2E_PROFILE=$${KRUISE_E2E_PROFILE:-quick}
	stages=(tools image up deploy demo)
	declare -A says=(
	  [tools]="build the harness, and fetch or build Kubernetes, containerd and the rest"
	  [image]="build kruise-rs and its image, without link-time optimisation"
	  [up]="start a node" [deploy]="install kruise-rs" [demo]="restart a container" )
	# the first time, on a machine with 2 cores
	declare -A first=(
	  [tools]="about 8 min" [image]="about 4 min" [up]="under 1 min" [deploy]="under 1 min" [demo]="under 1 min" )
	mkdir -p target/demo
	echo "What comes, and how long it took here the last time; 'about' and 'under': the first time, on 2 cores:"
	for stage in "$${stages[@]}"; do
	  took=$$(cat "target/demo/$$stage" 2>/dev/null || true)
	  printf '  %-7s %-78s %s\n' "$$stage" "$${says[$$stage]}" "$${took:-$${first[$$stage]}}"
	done
	trap '[ -n "$(KEEP)" ] || $(E2E) down' EXIT
	for stage in "$${stages[@]}"; do
	  begin=$$SECONDS
	  $(E2E) "$$stage"
	  echo "$$((SECONDS - begin)) s" >"target/demo/$$stage"
	  echo "-- $$stage: $$((SECONDS - begin)) s"
	done

record: ## Record docs/images/restart.svg anew on a real node
	@$(E2E) tools
	$(E2E) image
	trap '[ -n "$(KEEP)" ] || $(E2E) down' EXIT
	$(E2E) up
	$(E2E) deploy
	$(E2E) record

test: ## Run every test: the end-to-end tests on a real node, and the unit tests beside the last of them
	@export KRUISE_E2E_PROFILE=$(QUICKER) PROPTEST_RNG_SEED=$(SEED)
	start=$$SECONDS
	cargo build --locked --workspace --features e2e/cluster,kruise-rs/load --bin e2e
	built=$$((SECONDS - start))
	trap '[ -n "$(KEEP)" ] || $(E2E) down' EXIT
	$(E2E) test --before "build the harness=$$built" $(if $(KEEP),--keep) $(E2E_ARGS)

others: ## Check what docs/ has for Prometheus and Argo CD with promtool and Argo CD's Lua, and nothing else
	@$(E2E) others

site: ## Build docs/ as static pages with search into target/site/book (mdBook, built the first time)
	@$(E2E) site

site-check: ## Build the site, look at each page in Chromium at the widths of a phone and a desktop, and search (in CI and `make soak`, not in `make test`)
	@$(E2E) site --check

check: ## Formatting, lints, and licences and sources of dependencies (with cargo-deny)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features e2e/cluster,kruise-rs/load --locked -- -D warnings
	if cargo deny --version >/dev/null 2>&1; then
	  cargo deny --log-level error check bans licenses sources
	  cargo deny --log-level error check advisories || echo "cargo deny: advisories above (or their database is out of reach): have a look, this fails nothing"
	else
	  echo "cargo deny: NOT RUN, it is not installed (cargo install --locked cargo-deny)"
	fi

check-time: ## Print how long `cargo check` takes after a change of one controller
	@cargo check --quiet --locked --lib
	for round in 1 2 3; do
	  touch src/controllers/pod_readiness/mod.rs
	  begin=$$(date +%s%N)
	  cargo check --quiet --locked --lib
	  echo "$$(( ($$(date +%s%N) - begin) / 1000000 )) ms"
	done

image: ## Build the container image and its SBOM into target/image/kruise-rs.tar and .cdx.json
	@$(E2E) tools --only-packages
	$(E2E) image

manifests: ## Write manifests/, the Helm chart and docs/reference.md anew from the tables in the source
	cargo run --quiet --locked --bin generate

e2e: ## Run the end-to-end tests on a fresh cluster (E2E_ARGS=name, KEEP=1, KUBE=1.37 CONTAINERD=2)
	@export KRUISE_E2E_PROFILE=$(QUICKER)
	trap '[ -n "$(KEEP)" ] || $(E2E) down' EXIT
	$(E2E) test --only-e2e $(if $(KEEP),--keep) $(E2E_ARGS)

versions: ## Run the core tests on every pair of Kubernetes and containerd and print the table of docs/versions.md with the time of each (KUBE=1.37 picks; the first time each is built for minutes)
	@trap '$(E2E) down' EXIT
	$(E2E) versions

bench: ## Measure on a real node, then bench-load; print the figures (BENCH_ARGS='--requests 100 --endurance 1000 --idle 60 --at-once 100')
	@$(E2E) tools
	$(E2E) image
	$(E2E) load-nodes
	trap '[ -n "$(KEEP)" ] || $(E2E) down' EXIT
	$(E2E) up
	$(E2E) deploy
	$(E2E) bench $(BENCH_ARGS)
	$(MAKE) --no-print-directory bench-load

bench-load: ## Measure with 1,000 played nodes, 25 minutes (LOAD_ARGS='--nodes 1000 --pods-per-node 10 --requests 10000 --seconds 600')
	@$(E2E) tools --with-kwok
	$(E2E) image
	$(E2E) load-nodes
	trap '[ -n "$(KEEP)" ] || $(E2E) down' EXIT
	$(E2E) up
	$(E2E) deploy
	$(E2E) load $(LOAD_ARGS)

bench-scale: ## Measure CloneSet, StatefulSet, DaemonSet and budgets beside a bare client and the built-in kinds, 90 minutes; others with --only sidecar-set,spread,jobs (SCALE_ARGS='--only clone-set,stateful-set,daemon-set --rounds 3 --pods 1000 --nodes 50 --big-pods 20000 --big-nodes 1000 --clone-sets 1000 --budget-deletions 1000 --budgets 500 --image-nodes 1000')
	@$(E2E) tools
	$(E2E) image
	cargo build --quiet --locked --profile load --package e2e
	trap '[ -n "$(KEEP)" ] || $(E2E) down' EXIT
	$(E2E) up
	$(E2E) deploy
	cargo run --quiet --locked --profile load --package e2e -- scale $(SCALE_ARGS)

soak: ## 100,000 simulated histories, 5,000 random cases of each property, the long flood, ten years of schedules in twelve time zones, two equal builds, site-check, then the end-to-end tests ROUNDS=10 times with 60 random histories of CloneSets each
	@KRUISE_SIM_SEEDS=100000 cargo test --locked --workspace --features e2e/cluster --lib simulation
	cases="PROPTEST_RNG_SEED=$${PROPTEST_RNG_SEED:-$$RANDOM$$RANDOM} PROPTEST_CASES=$${PROPTEST_CASES:-5000}"
	echo "property tests: $$cases cargo test --locked --workspace --features e2e/cluster --lib"
	env $$cases cargo test --locked --workspace --features e2e/cluster --lib
	# A name that no test has passes, with 0 tests.
	run_one() {
	  cargo test --locked --workspace --features e2e/cluster --lib -- --ignored --nocapture --exact "$$1" | tee >(cat >&2) \
	    | grep '^test result: ok\. 1 passed' >/dev/null || { echo "$$1: want exactly one test that passes" >&2; exit 1; }
	}
	run_one webhook::server::tests::connections::flood
	run_one domain::kinds::cron_job::schedule::tests::c4_ten_years_in_twelve_zones
	$(E2E) reproducible
	$(E2E) site --check
	trap '[ -n "$(KEEP)" ] || $(E2E) down' EXIT
	KRUISE_RANDOM_SEEDS=$${KRUISE_RANDOM_SEEDS:-60} $(E2E) test --only-e2e --rounds $${ROUNDS:-10} $(if $(KEEP),--keep) $(E2E_ARGS)

cluster: ## Bring up a cluster with kruise-rs for hands-on work
	@$(E2E) tools
	$(E2E) image
	$(E2E) up --keep
	$(E2E) deploy
	$(E2E) status

cluster-down: ## Remove the cluster and everything it made
	@$(E2E) down

clean: ## Remove the cluster and all build results
	@$(E2E) down
	rm -rf .cluster
	cargo clean
