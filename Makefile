# Targets for users (demo), engineers (build, test, lint, generate, docs) and proofs (fuzz, bench, soak).

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/waggle-net/waggle/pkg/version.linked=$(VERSION)
BUILD   := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'

# Tests run tier by tier; `go run ./test/tiers -h` and Documentation/testing.md say what the tiers are. Everything but the race
# detector compiles with the flags of BUILD, so that each package is compiled once.
TIERS     ?= lint hermetic machine node
GO_RUN    := CGO_ENABLED=0 $(GO) run -trimpath -buildvcs=false
RUN_TIERS := $(GO_RUN) ./test/tiers

FUZZTIME ?= 1m

# Kubernetes' own programs and the images of tests.
KUBE := bin/kube

.PHONY: all help build generate docs packages file-times vet lint test test-all test-race faults testcost fuzz bench bench-kernels demo soak clean \
	image kube-binaries kube-images test-kube test-kernels bench-kube cluster cluster-down

all: build

help: ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## static, stripped binaries in bin/
	$(BUILD) -o bin/waggle-agent ./cmd/waggle-agent
	$(BUILD) -o bin/waggle-cni ./cmd/waggle-cni
	$(BUILD) -o bin/waggle ./cmd/waggle

generate: packages ## BPF objects, API models, generated pages
	$(GO) generate ./...

docs: ## the generated pages of Documentation/
	$(GO_RUN) ./tools/reference -write

packages: ## Debian packages that tests and generators need
	hack/packages

# For clones that are only tested: the test cache then serves all clones of one tree.
file-times:
	$(RUN_TIERS) -filetimes

vet: ## go vet and gofmt
	CGO_ENABLED=0 $(GO) vet -trimpath ./...
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "run gofmt -w on:"; echo "$$unformatted"; exit 1; fi

# With WAGGLE_ALL staticcheck begins with an empty cache.
lint: vet ## staticcheck as well
	$(if $(WAGGLE_ALL),rm -rf bin/staticcheck && STATICCHECK_CACHE=$(CURDIR)/bin/staticcheck )CGO_ENABLED=0 GOFLAGS=-trimpath $(GO) tool staticcheck ./...

# TIERS="lint hermetic" runs a part.
test: packages ## the tiers lint, hermetic, machine and node; needs root
	@$(RUN_TIERS) $(TIERS)

# WAGGLE_ALL holds for the prerequisites as well.
test-all: export WAGGLE_ALL = 1
test-all: packages build image kube-binaries bin/cluster ## all tiers, with nothing from a cache of results; needs root
	@$(RUN_TIERS) lint hermetic machine node kernels kube

test-race: ## the packages with the most goroutines, under the race detector
	$(GO) test -race -trimpath -vet=off -count=1 -p 2 -timeout 10m $$($(RUN_TIERS) -list race)

test-kube: packages build image kube-binaries bin/cluster ## tests on a real Kubernetes; needs root
	@$(RUN_TIERS) kube

# KERNELS_FLAGS='-kernels 6.1 -packages bpf/tests,cells/datapath/loader -run REGEXP' runs a part.
test-kernels: packages ## tests that need a kernel, inside Debian's kernels 6.1 and 6.12 under qemu
	@KERNELS_FLAGS="$(KERNELS_FLAGS)" $(RUN_TIERS) kernels

# NODES=3 makes three nodes, whose pods reach each other through a tunnel; CLUSTER_FLAGS=-bare leaves Waggle out.
NODES ?= 1
cluster: packages build image kube-binaries bin/cluster ## a Kubernetes with Waggle that stays; prints how to use it; needs root
	@bin/cluster up -nodes $(NODES) $(CLUSTER_FLAGS)

cluster-down: bin/cluster ## ends the Kubernetes of make cluster
	@bin/cluster down

bin/cluster: FORCE
	cd test/kube && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -o ../../bin/cluster ./cmd/cluster

.PHONY: FORCE
FORCE:

IMAGE ?= waggle.local/waggle:$(VERSION)

image: build ## bin/waggle-image.tar, without Docker; IMAGE=name:tag adds a name
	$(GO_RUN) ./tools/image -o bin/waggle-image.tar -name waggle.local/waggle:$(VERSION) \
		$(if $(filter-out waggle.local/waggle:$(VERSION),$(IMAGE)),-name $(IMAGE)) -entrypoint /usr/bin/waggle-agent \
		bin/waggle-agent=/usr/bin/waggle-agent bin/waggle-cni=/usr/bin/waggle-cni bin/waggle=/usr/bin/waggle

# Kept outside of the clone, by the hash of what they are built from.
kube-binaries: packages kube-images
	GO='$(GO)' hack/kube-binaries

kube-images:
	cd test/kube && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o ../../$(KUBE)/ ./cmd/pause ./cmd/talk
	$(GO_RUN) ./tools/image -o $(KUBE)/pause.tar -name waggle.local/pause:1 -entrypoint /pause $(KUBE)/pause=/pause
	$(GO_RUN) ./tools/image -o $(KUBE)/client.tar -name waggle.local/client:1 \
		$$(busybox --list | grep -vx busybox | sed 's|.*|-link busybox=/bin/&|') /bin/busybox=/bin/busybox
	$(GO_RUN) ./tools/image -o $(KUBE)/talk.tar -name waggle.local/talk:1 -entrypoint /bin/talk $(KUBE)/talk=/bin/talk

faults: packages ## puts known faults into a copy of the tree, one after the other, and shows the tests that catch them; needs root
	$(GO_RUN) ./test/faults

# PACKAGES=./cells/... for others.
PACKAGES ?= ./test/node
testcost: build packages ## CPU time and waiting of each test, run alone; names those that belong in the list of expensive tests
	PROGRAMS_UNDER_TEST=$(CURDIR)/bin $(GO_RUN) ./tools/testcost -over $(PACKAGES)

fuzz: ## each fuzz target for FUZZTIME, by default 1m
	hack/fuzz $(FUZZTIME)

# BENCH_FLAGS='-only promises' runs a part, -list names all.
bench: build packages ## figures beside those of Debian's reference plugins and the promises of time, each with its budget; needs root
	$(GO_RUN) ./test/bench $(BENCH_FLAGS)

bench-kernels: packages ## instructions per packet on Debian's kernels, counted by the emulator: ratios that no load changes
	$(GO_RUN) ./test/kernels -bench $(KERNELS_FLAGS)

# BENCH_FLAGS='-nodes 0' measures an empty cluster and 200 pods on a node, -strict fails when a budget is missed, -h names all flags.
bench-kube: build image kube-binaries ## memory, CPU and start on a real Kubernetes with 5,000 nodes and 20,000 pods elsewhere; needs root
	cd test/kube && $(GO_RUN) ./bench $(BENCH_FLAGS)

# NODES=2 has pods on two nodes, with the tunnel between them.
demo: build ## three pods in private network namespaces; needs root
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -o bin/demo ./test/demo
	@bin/demo -nodes $(NODES)

# SOAK='node hostile' runs a part.
soak: build packages image kube-binaries ## the counts and times that do not fit into test, and a lane beside busy processes; needs root
	hack/soak $(SOAK)

clean: ## removes bin/
	rm -rf bin
