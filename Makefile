# Targets for users (demo), engineers (build, test, lint, generate, docs) and proofs (fuzz, bench, soak).

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/waggle-net/waggle/pkg/version.linked=$(VERSION)
BUILD   := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'

# Packages with the most goroutines and locks; the race detector makes everything else slow for little.
RACE := ./pkg/hive ./pkg/bootlog ./cells/health ./cells/metrics ./cells/ipam ./cells/endpointmanager \
	./cells/unmanagedpods ./cells/endpointmaps \
	./cells/endpointstate ./pkg/ipalloc ./pkg/deletequeue ./pkg/kubeapi/... ./pkg/writeback ./cells/k8sclient \
	./cells/k8stables/... ./cells/identity ./cells/ciliumendpoints ./cells/ciliumnode ./cells/k8snode ./cells/leaderelection \
	./cells/clusterpool ./cells/endpointgc ./cells/policystatus ./pkg/heartbeat ./cells/liveness ./cells/drift ./cells/linkreaper ./cells/loader \
	./cells/maps ./pkg/inventory ./pkg/rtnl ./cells/services ./cells/servicemaps ./cells/sockterm ./cells/masquerade ./cells/servicehealth \
	./cells/nodeaddresses ./cells/ipmasqagent

FUZZTIME ?= 1m

# Kubernetes' own programs, built from the nested module in test/kube with the version that its go.mod names.
KUBE         := bin/kube
KUBE_VERSION := $(shell awk '$$1 == "k8s.io/kubernetes" { print $$2 }' test/kube/go.mod)
KUBE_NAMES   := kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl
KUBE_LDFLAGS := -s -w $(foreach v,gitVersion=$(KUBE_VERSION) gitMajor=1 gitMinor=$(word 2,$(subst ., ,$(KUBE_VERSION))), \
	-X k8s.io/component-base/version.$(v))
# Not Kubernetes' programs, which vet and test would compile once more.
KUBE_PACKAGES := . ./cmd/pause ./cmd/talk ./cmd/cluster $(patsubst test/kube/%/,./%,$(sort $(dir $(wildcard test/kube/*/*.go))))

.PHONY: all help build generate docs packages vet lint test test-race fuzz bench demo soak clean \
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
	$(GO) run ./tools/reference -write

packages: ## Debian packages that tests and generators need
	hack/packages

vet: ## go vet and gofmt
	$(GO) vet ./...
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "run gofmt -w on:"; echo "$$unformatted"; exit 1; fi

lint: vet ## staticcheck as well
	$(GO) tool staticcheck ./...

# Tests start programs and ask the kernel, of which the test cache knows nothing: hence -count=1, also below.
test: packages lint ## everything that must hold; needs root
	$(GO) test -count=1 -p 2 -timeout 20m ./...
	$(MAKE) test-race

test-race: ## the packages with the most goroutines, under the race detector
	$(GO) test -race -p 2 -timeout 5m $(RACE)

test-kube: packages build image kube-binaries bin/cluster ## tests on a real Kubernetes; needs root
	cd test/kube && $(GO) vet $(KUBE_PACKAGES) && $(GO) test -count=1 -p 1 -timeout 15m $(KUBE_PACKAGES)

# KERNELS_FLAGS='-kernels 6.1 -packages bpf,cells/loader -run REGEXP' runs a part.
test-kernels: packages ## tests that need a kernel, inside Debian's kernels 6.1 and 6.12 under qemu
	$(GO) run ./test/kernels $(KERNELS_FLAGS)

# NODES=2 makes two nodes; CLUSTER_FLAGS=-bare leaves Waggle out.
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
	$(GO) run ./tools/image -o bin/waggle-image.tar -name waggle.local/waggle:$(VERSION) \
		$(if $(filter-out waggle.local/waggle:$(VERSION),$(IMAGE)),-name $(IMAGE)) -entrypoint /usr/bin/waggle-agent \
		bin/waggle-agent=/usr/bin/waggle-agent bin/waggle-cni=/usr/bin/waggle-cni bin/waggle=/usr/bin/waggle

# Linking takes a minute even when all is compiled, so the programs are made anew only when what they come from changes.
kube-binaries: packages $(KUBE)/stamp kube-images

$(KUBE)/stamp: test/kube/go.mod test/kube/go.sum $(KUBE_NAMES:%=test/kube/cmd/%/main.go)
	cd test/kube && $(GO) build -trimpath -buildvcs=false -ldflags '$(strip $(KUBE_LDFLAGS))' -o ../../$(KUBE)/ $(KUBE_NAMES:%=./cmd/%)
	touch $@

kube-images:
	cd test/kube && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o ../../$(KUBE)/ ./cmd/pause ./cmd/talk
	$(GO) run ./tools/image -o $(KUBE)/pause.tar -name waggle.local/pause:1 -entrypoint /pause $(KUBE)/pause=/pause
	$(GO) run ./tools/image -o $(KUBE)/client.tar -name waggle.local/client:1 \
		$$(busybox --list | grep -vx busybox | sed 's|.*|-link busybox=/bin/&|') /bin/busybox=/bin/busybox
	$(GO) run ./tools/image -o $(KUBE)/talk.tar -name waggle.local/talk:1 -entrypoint /bin/talk $(KUBE)/talk=/bin/talk

fuzz: ## each fuzz target for FUZZTIME, by default 1m
	hack/fuzz $(FUZZTIME)

bench: build packages ## figures beside those of Debian's reference plugins; needs root
	$(GO) run ./test/bench

bench-kube: build kube-binaries ## memory, CPU and start on a real Kubernetes with 5,000 nodes and 20,000 pods elsewhere; needs root
	cd test/kube && $(GO) run ./bench

demo: build ## three pods in a private network namespace; needs root
	@$(GO) build -o bin/demo ./test/demo
	@bin/demo

soak: build packages image kube-binaries ## the counts and times that do not fit into test; needs root
	WAGGLE_TEST_SOAK=10 $(GO) test -count=1 -timeout 60m -v -run 'Privileged' ./test/node/...
	WAGGLE_TEST_SOAK=40 $(GO) test -count=1 -timeout 30m -v -run Naive ./pkg/policy
	$(GO) test -count=1 -timeout 30m -v -run AnswersAsTheReference ./pkg/policymap -policymap.worlds=20000
	$(GO) test -count=1 -timeout 30m -v -run JudgeAsTheReference ./cells/policy -policy.worlds=20000
	cd test/kube && WAGGLE_TEST_SOAK=1 $(GO) test -count=1 -timeout 30m -v -run 'Outage|Order' ./waggle

clean: ## removes bin/
	rm -rf bin
