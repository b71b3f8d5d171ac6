package main

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// tier is a group of tests with the same requirements.
type tier struct {
	name   string
	about  string
	budget time.Duration // of CPU time with empty caches; more is a warning, more than twice as much is a failure
	calls  func(tree *tree, all bool) []call
	seed   seeding
	scaled bool // the budget is multiplied by the slowness of the machine
	stage  int  // stages run in order, the tiers of one stage concurrently

	// decides reports whether a file of the tree affects the tier's result. The result is stored until such a file changes; nil: it is not stored.
	decides func(name string) bool
}

// seeding is the source of the seed for a tier's random tests. WAGGLE_SEED overrides both sources.
type seeding int

const (
	noSeed       seeding = iota // no random tests
	constantSeed                // testseed.Default, so that results stay cached
	treeSeed                    // the hash of the committed tree
)

// call is one command of a tier.
type call struct {
	args   []string
	dir    string   // relative to the tree; "" is its root
	env    []string // in addition to the environment
	events bool     // the command prints events of `go test -json`
}

// tiers lists all tiers by stage. A stage combines tiers that wait with tiers that compute.
var tiers = []tier{
	{name: "lint", budget: 700 * time.Second, calls: lint, about: "go vet, gofmt and staticcheck"},
	{name: "hermetic", budget: 900 * time.Second, calls: hermetic, stage: 1, seed: constantSeed,
		about: "packages that need neither privileges nor other programs; results are cached by content"},
	{name: "machine", budget: 280 * time.Second, calls: machine, stage: 2, seed: treeSeed, scaled: true,
		about: "packages that need root, this machine's kernel or other programs; most results are cached by content, kernel and Debian packages"},
	{name: "kernels", budget: 720 * time.Second, calls: kernels, stage: 2, seed: constantSeed, scaled: true,
		about: "tests inside Debian's kernels 6.1 and 6.12 under qemu"},
	{name: "node", budget: 1100 * time.Second, calls: node, stage: 3, seed: treeSeed, scaled: true, decides: decidesNode,
		about: "the real agent and plugin on private nodes; the result is cached by content, kernel and Debian packages"},
	{name: "kube", budget: 750 * time.Second, calls: kube, stage: 4, seed: treeSeed, scaled: true, decides: decidesKube,
		about: "a real Kubernetes; the result is cached by content, kernel and Debian packages"},
}

// plain compiles tests with the flags of `make build`, so that packages are compiled once; the tier lint has run vet.
var plain = []string{"go", "test", "-json", "-trimpath", "-vet=off"}

// noCgo is the environment of plain.
var noCgo = []string{"CGO_ENABLED=0"}

func goTest(flags []string, packages []string) call {
	args := append(append([]string(nil), plain...), flags...)
	return call{args: append(args, packages...), env: noCgo, events: true}
}

// raceTest compiles with the race detector, which needs cgo.
func raceTest(flags []string, packages []string) call {
	c := goTest(append([]string{"-race"}, flags...), packages)
	c.env = []string{"CGO_ENABLED=1"}
	return c
}

// allEnv is the environment variable that makes every command ignore cached results: make lint, test/kernels, hack/kube-binaries, test/nodekit.
const allEnv = "WAGGLE_ALL"

// uncached makes `go test` ignore its stored results.
const uncached = "-count=1"

func lint(*tree, bool) []call {
	return []call{{args: []string{"make", "--no-print-directory", "lint"}}}
}

// hermetic packages mostly sleep or compute little, so more packages than CPUs run concurrently.
func hermetic(t *tree, all bool) []call {
	flags := []string{"-p", "4", "-timeout", "10m"}
	if all {
		flags = append(flags, uncached)
	}
	race, rest := t.split(t.of("hermetic"))
	return []call{raceTest(flags, race), goTest(flags, rest)}
}

func machine(t *tree, all bool) []call {
	flags := []string{"-p", "2", "-timeout", "10m"}
	fresh := append(slices.Clone(flags), uncached)
	if all {
		flags = fresh
	}
	cached, always := visible(t.of("machine"))
	race, rest := t.split(cached)
	calls := []call{raceTest(flags, race), goTest(flags, rest), goTest(fresh, always)}
	for i := range calls {
		calls[i].env = append(slices.Clone(calls[i].env), testnet.MachineEnv+"="+machineID())
	}
	return calls
}

// node also runs the tests of test/nodekit. Load generators serialize themselves.
func node(t *tree, _ bool) []call {
	return []call{goTest([]string{"-p", "2", "-timeout", "20m", uncached}, t.of("node"))}
}

func kernels(*tree, bool) []call {
	return []call{{args: append([]string{"go", "run", "-trimpath", "./test/kernels"}, kernelsFlags()...), env: noCgo}}
}

// kube compiles only the folders with tests: make links Kubernetes' own programs, which are not tested. Two packages run concurrently, because clusters
// mostly wait; the package with the most tests is the last by name and starts first.
func kube(t *tree, _ bool) []call {
	packages := t.nested("test/kube")
	slices.Reverse(packages)
	c := goTest([]string{"-p", "2", "-timeout", "20m", uncached}, packages)
	c.dir = filepath.FromSlash("test/kube")
	vet := call{args: append([]string{"go", "vet", "-trimpath"}, t.nested("test/kube")...), dir: c.dir, env: noCgo}
	return []call{vet, c}
}

// find returns the tier with a name.
func find(name string) (tier, bool) {
	for _, t := range tiers {
		if t.name == name {
			return t, true
		}
	}
	return tier{}, false
}

// names lists the tiers for messages.
func names() string {
	var all []string
	for _, t := range tiers {
		all = append(all, t.name)
	}
	return strings.Join(all, ", ")
}
