package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"
	"time"

	"github.com/waggle-net/waggle/pkg/testseed"
)

// passedTier is what is remembered of a tier that passed.
type passedTier struct {
	Tier                   string
	Date                   time.Time
	Run, Skipped, Packages int
}

// decidesKube reports whether a file of the tree, by its path with slashes, decides how the tests of the tier kube end: all but pages and the tests of
// other tiers.
func decidesKube(name string) bool {
	switch {
	case strings.HasPrefix(name, "test/kube/"):
		return true
	case strings.HasPrefix(name, "Documentation/"), strings.HasPrefix(name, "test/"), strings.HasPrefix(name, ".ci/"), strings.HasSuffix(name, ".md"):
		return false
	}
	return !strings.HasSuffix(name, "_test.go") && !strings.Contains("/"+path.Dir(name)+"/", "/testdata/")
}

// sources returns a hash of the files that decide how a tier ends, the compiler, the machine, and a seed that the environment names. It is "" for a tier whose results are not
// kept, and for a tree with changes that are not committed.
func (t tier) sources(root string) (string, error) {
	if t.decides == nil {
		return "", nil
	}
	changed, err := gitIn(root, "status", "--porcelain").Output()
	if err != nil || len(changed) > 0 {
		return "", err
	}
	list, err := gitIn(root, "ls-files", "-s", "-z").Output()
	if err != nil {
		return "", fmt.Errorf("list the files that decide about the tier %s: %w", t.name, err)
	}
	sum := sha256.New()
	fmt.Fprintln(sum, t.name, runtime.Version(), machineID(), os.Getenv(testseed.Env))
	for entry := range bytes.SplitSeq(bytes.Trim(list, "\x00"), []byte{0}) {
		if _, name, _ := strings.Cut(string(entry), "\t"); t.decides(name) {
			fmt.Fprintf(sum, "%s\x00", entry)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
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
	fmt.Fprintf(r.out, "same  %d tests as passed on %s with the same sources, kernel and Debian packages\n", passed.Run, passed.Date.Format(time.DateOnly))
	v.counts = counts{cached: passed.Run, skipped: passed.Skipped, packages: passed.Packages, cachedPackages: passed.Packages}
	return v, true
}

// keep remembers a tier that passed, and forgets one that failed.
func (r *runner) keep(v verdict) error {
	switch {
	case v.sources == "" || v.counts.run == 0:
		return nil
	case len(v.failed) > 0:
		return r.stamps.Remove(v.sources)
	}
	return r.stamps.Put(v.sources, passedTier{v.tier.name, r.stamps.Now(), v.counts.run, v.counts.skipped, v.counts.packages})
}
