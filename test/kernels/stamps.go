package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/waggle-net/waggle/test/kernels/plan"
)

// passedFor is how long a pass is believed. What is not in the hash, such as the machine outside, changes as well.
const passedFor = 14 * 24 * time.Hour

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

// stamps is a folder of suites that passed, each a file called by the hash of its [inputs]. Runs side by side may share it.
type stamps struct {
	dir string
	now func() time.Time
}

// find returns the stamp of a hash that is not too old. A stamp that cannot be read, or is of a day to come, is none.
func (s stamps) find(hash string) (*stamp, bool) {
	text, err := os.ReadFile(filepath.Join(s.dir, hash))
	var found stamp
	if err != nil || json.Unmarshal(text, &found) != nil {
		return nil, false
	}
	if age := s.now().Sub(found.Date); age < 0 || age > passedFor {
		return nil, false
	}
	return &found, true
}

// put remembers that a suite passed. The file appears only when it is complete.
func (s stamps) put(hash string, passed stamp) error {
	if err := s.removeOld(); err != nil {
		return err
	}
	passed.Date = s.now()
	text, err := json.MarshalIndent(passed, "", "\t")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(s.dir, ".stamp-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(text)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(s.dir, hash))
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // the first error is returned
		return fmt.Errorf("remember that %s passed: %w", passed.Package, err)
	}
	return nil
}

// remove forgets a suite, which has failed.
func (s stamps) remove(hash string) error {
	if err := os.Remove(filepath.Join(s.dir, hash)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeOld removes stamps that no run believes any more.
func (s stamps) removeOld() error {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && s.now().Sub(info.ModTime()) > passedFor {
			_ = os.Remove(filepath.Join(s.dir, e.Name())) // another run may have removed it
		}
	}
	return err
}
