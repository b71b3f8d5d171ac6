// Package selftestreport reads and writes the report of a test attachment on this node. "waggle-agent setup" writes the report and the agent reads it; they run in
// different containers and share a directory.
package selftestreport

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	fileName = "self-test.json"
	tmpName  = ".self-test.json.tmp" // one writer at a time: the setup command holds a lock
	// maxSize and maxText limit the content of the file, which may be written by other processes.
	maxSize = 64 << 10
	maxText = 2 << 10
)

// Report is the outcome of one attempt.
type Report struct {
	BootID  string    `json:"bootID"`            // of the kernel at that time; a report of another boot proves nothing
	Version string    `json:"version"`           // of the program that ran the test
	At      time.Time `json:"at"`                // when the attempt ended
	Steps   []Step    `json:"steps,omitempty"`   // in order; the last one failed if Error is set
	Error   string    `json:"error,omitempty"`   // empty: all steps succeeded
	Folders string    `json:"folders,omitempty"` // why the container runtime does not find plugin or configuration; empty: it does, or unknown
}

// Step is one step of the test.
type Step struct {
	Name     string        `json:"name"`
	Duration time.Duration `json:"duration"` // nanoseconds
}

// Path returns the path of an agent's report.
func Path(stateDir string) string { return filepath.Join(stateDir, fileName) }

// Write replaces the report atomically: readers see the old one or the new one.
func Write(stateDir string, r Report) error {
	for _, text := range []*string{&r.Error, &r.Folders} {
		if len(*text) > maxText {
			*text = strings.ToValidUTF8((*text)[:maxText], "")
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the report of the self-test: %w", err)
	}
	tmp := filepath.Join(stateDir, tmpName)
	if err = os.WriteFile(tmp, append(text, '\n'), 0o600); err == nil {
		err = os.Rename(tmp, Path(stateDir))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write the report of the self-test: %w", err), remove(tmp))
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Read returns the report, or fs.ErrNotExist without one.
func Read(stateDir string) (r Report, err error) {
	defer func() {
		if err != nil {
			r, err = Report{}, fmt.Errorf("read the report of the self-test: %w", err)
		}
	}()
	path := Path(stateDir)
	info, err := os.Lstat(path)
	if err != nil {
		return r, err
	}
	if !info.Mode().IsRegular() {
		return r, fmt.Errorf("%s: is not a regular file: remove it", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return r, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return r, err
	}
	if len(text) > maxSize {
		return r, fmt.Errorf("%s: has more than %d bytes: remove it", path, maxSize)
	}
	if err := parse(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w: remove it; the next self-test writes a new one", path, err)
	}
	return r, nil
}

// parse parses one JSON document and checks the fields that the agent uses.
func parse(text []byte, r *Report) error {
	if err := json.Unmarshal(text, r); err != nil {
		return err
	}
	switch {
	case r.BootID == "":
		return errors.New("bootID: missing")
	case r.At.IsZero():
		return errors.New("at: missing")
	case len(r.Error) > maxText:
		return fmt.Errorf("error: has more than %d bytes", maxText)
	case len(r.Folders) > maxText:
		return fmt.Errorf("folders: has more than %d bytes", maxText)
	}
	return nil
}

// BootID returns the id of the current boot.
func BootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id of the kernel: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
