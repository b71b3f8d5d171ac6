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

// inputs are everything that decides how a suite ends on a kernel. The seed of random tests is part of the suite's environment when
// WAGGLE_SEED names one.
type inputs struct {
	Suite    plan.Suite        // arguments, environment, modules and programs by name
	Base     []string          // modules that are loaded for all suites, in load order
	Kernel   string            // package, version and checksum of the package
	Machine  []string          // the emulator's version and arguments
	Guest    string            // identity of the first process
	Runner   string            // identity of test2json
	Binary   string            // identity of the test binary
	Programs map[string]string // identities of the programs under test, by name
	Testdata map[string]string // checksums of the package's files for tests, by path
}

func (i inputs) hash() (string, error) {
	text, err := json.Marshal(i) // keys of maps are sorted
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// checksums returns the SHA-256 of each file below a folder, by its path there. A folder that does not exist has none.
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

// stamp is what is remembered of a suite that passed.
type stamp struct {
	Kernel, Package string
	Date            time.Time
	Tests           int               // that passed, without subtests
	Skipped         map[string]string // what each skipped test printed, by its name
	Attributes      map[string]string // that tests gave themselves
}
