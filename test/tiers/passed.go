package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// passedTier records a tier that passed.
type passedTier struct {
	Tier, Seed             string
	Date                   time.Time
	Run, Skipped, Packages int
}

// decidesKube reports whether a file, by its path with slashes, affects the result of tier kube: all files except pages and the tests of other tiers.
func decidesKube(name string) bool {
	return inAny(name, "test/kube/", "test/tiers/", "test/stamps/") || !isPage(name) && !inAny(name, "test/") && !strings.HasSuffix(name, "_test.go") && !isTestData(name)
}

// decidesNode reports the same of tier node, whose tests also load data of tests of other tiers.
func decidesNode(name string) bool {
	return inAny(name, "test/node/", "test/nodekit/", "test/demo/", "test/attributes/", "test/tiers/", "test/stamps/") ||
		!isPage(name) && !inAny(name, "test/") && (!strings.HasSuffix(name, "_test.go") || isTestData(name))
}

// inAny reports whether a file is in one of some folders, which end in a slash.
func inAny(name string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(name, folder) })
}

func isPage(name string) bool {
	return strings.HasPrefix(name, "Documentation/") || strings.HasSuffix(name, ".md")
}

func isTestData(name string) bool { return strings.Contains("/"+path.Dir(name)+"/", "/testdata/") }

// sources returns a hash of all inputs of a tier's result: the files, the compiler, the machine, and the environment variables for the compiler and for
// tests. It returns "" if results are not stored: for other tiers, outside CI (bin/ may contain programs of another tree, and skips are not failures), and
// for a tree that is not a clone or has uncommitted changes.
func (r *runner) sources(t tier) string {
	if t.decides == nil || !r.clean {
		return ""
	}
	changed, err := gitIn(r.tree.root, "status", "--porcelain", "--untracked-files=all").Output()
	if err != nil || len(changed) > 0 {
		return ""
	}
	list, err := gitIn(r.tree.root, "ls-files", "-s", "-z").Output()
	if err != nil {
		return ""
	}
	sum := sha256.New()
	fmt.Fprintln(sum, t.name, runtime.Version(), machineID())
	for _, v := range slices.Sorted(slices.Values(os.Environ())) {
		if name, _, _ := strings.Cut(v, "="); name != "WAGGLE_CACHE" && (strings.HasPrefix(name, "WAGGLE_") || strings.HasPrefix(name, "GO")) {
			fmt.Fprintf(sum, "%s\x00", v)
		}
	}
	for entry := range bytes.SplitSeq(bytes.Trim(list, "\x00"), []byte{0}) {
		if _, name, _ := strings.Cut(string(entry), "\t"); t.decides(name) {
			fmt.Fprintf(sum, "%s\x00", entry)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// kept returns the verdict of a tier that has passed with the same sources.
func (r *runner) kept(v verdict) (verdict, bool) {
	if v.sources == "" || r.all {
		return v, false
	}
	passed, found := r.stamps.Find(v.sources)
	if !found {
		return v, false
	}
	fmt.Fprintf(r.out, "same  %d tests as passed on %s with the same sources, kernel and Debian packages, and the seed %s\n", passed.Run,
		passed.Date.Format(time.DateOnly), cmp.Or(passed.Seed, "-"))
	v.counts = counts{cached: passed.Run, skipped: passed.Skipped, packages: passed.Packages, cachedPackages: passed.Packages}
	return v, true
}

// keep records a tier that ran and passed, and removes the record of one that failed.
func (r *runner) keep(v verdict, seed string) error {
	switch {
	case v.sources == "" || v.counts.cached > 0 && v.counts.run == 0:
		return nil
	case len(v.failed) > 0 || v.counts.run == 0 || r.sources(v.tier) != v.sources:
		return r.stamps.Remove(v.sources)
	}
	return r.stamps.Put(v.sources, passedTier{v.tier.name, v.tier.seedOf(seed), r.stamps.Now(), v.counts.run, v.counts.skipped, v.counts.packages})
}
