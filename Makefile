# Targets for users (demo), engineers (build, test, lint, generate, docs) and proofs (fuzz, bench, soak).

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/waggle-net/waggle/pkg/version.linked=$(VERSION)
BUILD   := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'

# Packages with the most goroutines and locks; the race detector makes everything else slow for little.
RACE := ./pkg/hive ./pkg/bootlog ./cells/health ./cells/metrics ./cells/ipam ./cells/endpointmanager \
	./cells/endpointstate ./pkg/ipalloc ./pkg/deletequeue

FUZZTIME ?= 1m

.PHONY: all help build generate docs packages vet lint test test-race fuzz bench demo soak clean

all: build

help: ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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

test: packages lint ## everything that must hold; needs root
	$(GO) test -p 2 -timeout 10m ./...
	$(MAKE) test-race

test-race: ## the packages with the most goroutines, under the race detector
	$(GO) test -race -p 2 -timeout 5m $(RACE)

fuzz: ## each fuzz target for FUZZTIME, by default 1m
	hack/fuzz $(FUZZTIME)

bench: build packages ## figures beside those of Debian's reference plugins; needs root
	$(GO) run ./test/bench

demo: build ## three pods in a private network namespace; needs root
	@$(GO) build -o bin/demo ./test/demo
	@bin/demo

soak: build packages ## the counts that do not fit into test; needs root
	WAGGLE_TEST_SOAK=10 $(GO) test -count=1 -timeout 60m -v -run 'Privileged' ./test/node/...

clean: ## removes bin/
	rm -rf bin
