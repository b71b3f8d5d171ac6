package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/waggle-net/waggle/test/kernels/plan"
)

// inputs holds all inputs that determine the result of a suite on a kernel. The seed of random tests is part of the suite's environment if WAGGLE_SEED is
// set.
type inputs struct {
	Suite    plan.Suite        // arguments, environment, modules and programs by name
	Base     []string          // loaded for all suites, in load order
	Kernel   string            // package, version and checksum of the package
	Machine  []string          // the emulator's version and arguments
	Guest    string            // identity of the first process
	Runner   string            // identity of test2json
	Binary   string            // identity of the test binary
	Programs map[string]string // identities of the programs under test, by name
	Testdata map[string]string // checksums of the package's testdata files, by path
}

func (i inputs) hash() (string, error) {
	text, err := json.Marshal(i) // sorts the keys of maps
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// checksums returns the SHA-256 of each file below a folder by relative path. It returns none for a missing folder.
func checksums(dir string) (map[string]string, error) {
	sums := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == dir {
			return nil
		}
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		sum := sha256.Sum256(text)
		sums[name] = hex.EncodeToString(sum[:])
		return err
	})
	return sums, err
}

// stamp records a suite that passed.
type stamp struct {
	Kernel, Package string
	Date            time.Time
	Tests           int               // passed tests, without subtests
	Skipped         map[string]string // output of skipped tests, by name
	Attributes      map[string]string // set by tests
}
