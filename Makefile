# Every tool is pinned: light ones by tool lines in go.mod, heavy ones in
# tools.mod. Nothing is downloaded but Go modules.

# Without cgo the binary is static, and the build, the tests and the linter
# share one set of compiled dependencies. Only the race detector needs cgo.
export CGO_ENABLED := 0

# What is compiled without the folder it lies in serves every clone.
export GOFLAGS := $(strip $(filter-out -trimpath,$(GOFLAGS)) -trimpath)

# sudo leaves the folder out of PATH that Go's own archive is unpacked to.
export PATH := $(PATH):/usr/local/go/bin

# go tool would take no -trimpath, and compile all that a tool shares with the module once more.
TOOL := go run -modfile=tools.mod
GOLANGCI := $(TOOL) github.com/golangci/golangci-lint/v2/cmd/golangci-lint
# Flags for go test, such as TESTFLAGS='-run Chain -v'.
TESTFLAGS ?=
# What bench runs, how often, and where its output goes.
BENCH ?= .
BENCHCOUNT ?= 6
BENCHOUT ?= dist/bench.txt
# How long fuzz runs each target, as a duration or a number of inputs: 10s, 5000x.
FUZZTIME ?= 30s
# What make test runs beside the packages' own tests. RACE=ours has the packages with goroutines of ours run under
# the race detector, RACE=all every package. KERNELS=6.12 has the tests of hooks run on that kernel of Debian's, too,
# in a virtual machine: see test-kernels. E2E=no and GITOPS=no leave out what else runs wherever the machine can.
RACE ?= none
KERNELS ?=
E2E ?= auto
GITOPS ?= auto
# How many packages run at once: the longest wait for a cluster half of their time.
ATONCE ?= $(shell echo $$(($$(nproc) * 3 / 2)))
# Until when packages that fail run once more, from the start of the run. What passes then is printed as FLAKY.
AGAIN ?= 0s
# Flags for the demo, such as ARGS=--keep.
ARGS ?=
# Where images and release push to, such as PUSH=registry.example.com/team.
PUSH ?=
# What release makes, who signs it (a key of cosign or skep key generate; its password is in
# $COSIGN_PASSWORD), who builds it, as a URI, and what images are named below where nothing is pushed.
VERSION ?=
KEY ?=
BUILDER ?=
FOLDER ?=
# UPDATE=1 has test-kernels write what it sees of each hook to hook/conformance.
UPDATE ?=
# Architecture of the nodes that images are for, such as ARCH=arm64; this
# machine's unless given. That of a release is both unless given.
ARCH ?=

.DEFAULT_GOAL := help
.PHONY: help build bin/skep bin/skep-demo images cut release demo demo-cluster containerd flux assets test test-integration test-gitops test-e2e test-kernels test-arm64 ui-pictures corpus fuzz bench bench-cluster cosign generate verify lint fmt clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: bin/skep ## Build bin/skep

bin/skep bin/skep-demo:
	@command -v go >/dev/null || { echo '$@: there is no go in PATH; install Go, or under sudo: make bin/skep bin/skep-demo as yourself, then sudo bin/skep-demo' >&2; exit 1; }
	go build -o $@ ./cmd/$(@F)

images: ## Make container images in dist/images.tar; PUSH=registry/folder pushes them instead
	go run ./release/images -push '$(PUSH)' $(if $(ARCH),-arch '$(ARCH)')

cut: ## Give changelog, chart and kustomize directory the VERSION=vX.Y.Z that is released next; look at it and commit it
	go run ./release/cut -version '$(VERSION)'
	go generate ./release/kustomize

release: ## Make release VERSION=vX.Y.Z in dist/release; KEY=cosign.key signs it, PUSH=registry/folder uploads it
	GOFLAGS='-mod=readonly -trimpath' GOWORK=off GOEXPERIMENT= go run ./release -version '$(VERSION)' -key '$(KEY)' -push '$(PUSH)' $(if $(BUILDER),-builder '$(BUILDER)') $(if $(FOLDER),-folder '$(FOLDER)') $(if $(ARCH),-arch '$(ARCH)')

demo: bin/skep bin/skep-demo ## Show the whole pipeline in the real kernel (root; ARGS=--keep leaves it running)
	bin/skep-demo $(ARGS)

demo-cluster: assets ## Show cluster mode on three nodes of this kernel, with a real API server (root)
	@test "$$(id -u)" = 0 || { echo 'demo-cluster: making nodes and loading programs needs root; run it with sudo' >&2; exit 1; }
	@go test -c -o bin/demo-cluster ./test/integration
	@cd test/integration && SKEP_DEMO=1 ../../bin/demo-cluster -test.run '^TestDemo$$' 2>/dev/null

containerd: ## Build the containerd 2 that tests run pods with (minutes, once); without it they have Debian's, and no NRI
	@go run ./test/harness/assets containerd

flux: ## Build Flux's source-controller and kustomize-controller that test-gitops runs (minutes, once)
	@go run ./test/harness/assets flux

assets: ## Build the Kubernetes, etcd and helm that tests run (minutes, once)
	@go run ./test/harness/assets controlplane
	@test -n "$$CI" || test "$$(id -u)" != 0 || go run ./test/harness/assets containerd flux || \
		echo 'assets: tests go on without what could not be built, and say so' >&2
	@go run -exec true -tags grpcnotrace -modfile=tools.mod helm.sh/helm/v4/cmd/helm
	@cd test/dashboards && go test -c -vet=off -ldflags=-w -o /dev/null .
	@go run -exec true -modfile=tools.mod github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity

test: assets ## Run every test; those that need the kernel need root. RACE, KERNELS, E2E and GITOPS say what else
	@$(SUITE) -race '$(RACE)' -kernels '$(KERNELS)' -e2e '$(E2E)' -gitops '$(GITOPS)' -again '$(AGAIN)'

test-integration: assets ## Run the tests of a cluster alone: a real API server, three nodes of this kernel
	@$(SUITE) -gitops no ./test/harness/controlplane ./test/integration/... ./test/chart

test-gitops: assets ## Have a commit reach programs on three nodes by Flux's own controllers (root)
	@$(SUITE) -flags '-run ^TestFlux $(TESTFLAGS)' ./test/integration

test-e2e: assets ## Install Skep into a real cluster of one node by the commands of docs/getting-started-cluster.md and docs/pods.md (root, containerd)
	@$(SUITE) ./test/e2e

test-kernels: ## Run the tests of every hook on Linux 6.1 and 6.12 in virtual machines (qemu) and on this kernel, or on KERNELS
	@SKEP_UPDATE='$(UPDATE)' $(SUITE) -kernels '$(or $(KERNELS),own,6.1,6.12)' -flags '-v -run OtherKernels $(TESTFLAGS)' ./test/kernel

# The emulator gives tests neither BPF nor namespaces of their own: as no root, they do without.
# Left out is what reads the types of the kernel that runs, which is one for another processor.
test-arm64: ## Run the tests that need no kernel for arm64, under qemu-user (minutes to build), and start the binaries
	GOARCH=arm64 CGO_ENABLED=0 go test -exec 'unshare --user qemu-aarch64' -timeout 60m $(TESTFLAGS) $(ARM64)
	GOARCH=arm64 CGO_ENABLED=0 go build -o bin/arm64/ ./cmd/skep ./cmd/skep-agent ./cmd/skep-controller ./cmd/skep-mounter
	@for b in skep skep-agent skep-controller skep-mounter; do qemu-aarch64 bin/arm64/$$b --version || exit 1; done

corpus: ## Run the objects of test/corpus, and some that nobody here wrote, on Linux 6.12 (qemu) and on this kernel
	go run ./test/corpus/gather bin/corpus
	SKEP_VM_PACKAGES=test/corpus SKEP_VM_TIMEOUT=40m $(SUITE) -kernels own,6.12 -flags '-v -run OtherKernels -timeout 60m' ./test/kernel

ui-pictures: ## Make the pictures of docs/ui.md anew, in Chromium; look at them, and commit them
	SKEP_UPDATE=1 go test -count 1 -run '^TestPicturesOfThePage$$' ./test/ui

# Without a bound on it, the search for a smaller input of the same coverage takes
# most of the time: one target ran 134 inputs a minute.
fuzz: ## Run every fuzz target for FUZZTIME each; a failing input lands in its package's testdata/fuzz
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' . | sed 's|/[^/]*:func | |' | sort | while read -r package target; do \
		echo "$$package $$target"; \
		(cd "$$package" && go test -run '^$$' -fuzz "^$$target$$" -fuzztime '$(FUZZTIME)' -fuzzminimizetime 5x .) || exit 1; \
	done

bench: ## Run the benchmarks into dist/bench.txt and compare with dist/bench.old.txt
	@mkdir -p $(dir $(BENCHOUT))
	go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(BENCHCOUNT) -timeout 60m $(MODULE)/... > $(BENCHOUT) || { cat $(BENCHOUT); exit 1; }
	@grep -v -e '^ok ' -e 'no test files' -e '^PASS$$' $(BENCHOUT)
	@old=$(basename $(BENCHOUT)).old.txt; test ! -e $$old || $(TOOL) golang.org/x/perf/cmd/benchstat $$old $(BENCHOUT)

bench-cluster: assets ## Measure a cluster: up to 1,000 simulated nodes, 1,000 applications, the webhook, an agent's memory (minutes)
	go test -run '^$$' -bench 'Nodes|Thousand|Webhook|Resident|AtRest' -benchtime 1x -timeout 30m ./test/integration/... ./agent/kube

cosign: ## Make signing's golden files anew by cosign 2 and 3, and have both verify Skep's (minutes to build)
	GOBIN='$(CURDIR)/dist/cosign/cosign2' go install github.com/sigstore/cosign/v2/cmd/cosign@v2.6.5
	GOBIN='$(CURDIR)/dist/cosign/cosign3' go install github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3
	go test ./signing -count 1 -run '^TestCosign' -cosign '$(CURDIR)/dist/cosign'

generate: ## Make all generated files anew: deep copies, objects (clang-19), schemas
	go generate ./...

verify: ## Fail where make generate would change a file
	@.ci/verify

lint: ## Run golangci-lint
	$(GOLANGCI) run
	cd skepmap && go run -modfile=../tools.mod github.com/golangci/golangci-lint/v2/cmd/golangci-lint run
	cd test/dashboards && go run -modfile=../../tools.mod github.com/golangci/golangci-lint/v2/cmd/golangci-lint run
	go test ./test/docs -run RetiredWord

fmt: ## Format the Go code
	$(GOLANGCI) fmt

clean: ## Remove what the other targets built
	rm -rf bin dist

# All packages, those of the module in skepmap too.
MODULE = github.com/skep-dev/skep

SUITE = go run ./test/suite -p '$(ATONCE)' $(if $(TESTFLAGS),-flags '$(TESTFLAGS)')

ARM64 ?= $(MODULE)/skepmap ./api/v1alpha1 ./hook/... ./bytecode/... ./image/... ./convert ./intent ./text \
	./agent/reconcile/plan ./agent/reconcile/decide ./agent/state/history ./agent/attach/targets ./agent/pods/containers ./agent/program/functions ./agent/program/usdt ./agent/program/chain
