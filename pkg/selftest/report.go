// Package selftest is the report of a real attach that was tried on this node. "waggle-agent setup" writes it and the
// agent reads it; the two run in different containers and share a directory.
package selftest

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
	// maxSize and maxText bound what is believed of a file that others might have written.
	maxSize = 64 << 10
	maxText = 2 << 10
)

// Report is the outcome of one attempt.
type Report struct {
	BootID  string    `json:"bootID"`            // of the kernel that was running; another one proves nothing
	Version string    `json:"version"`           // of the program that tried
	At      time.Time `json:"at"`                // when the attempt ended
	Steps   []Step    `json:"steps,omitempty"`   // in order; the last one is the one that failed
	Error   string    `json:"error,omitempty"`   // empty: all steps went through
	Folders string    `json:"folders,omitempty"` // why the container runtime does not find the plugin or its configuration; empty: it does, or nothing is known
}

// Step is one thing that was tried.
type Step struct {
	Name     string        `json:"name"`
	Duration time.Duration `json:"duration"` // nanoseconds
}

// Path is where the report of an agent lies.
func Path(stateDir string) string { return filepath.Join(stateDir, fileName) }

// Write replaces the report. Readers see the old one or the new one.
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

// Read returns the report. That there is none is fs.ErrNotExist.
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
		return r, fmt.Errorf("%s: %w: remove it, and the next self-test writes another", path, err)
	}
	return r, nil
}

// parse reads one JSON document and checks what the agent goes by.
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

// BootID names the run of the kernel.
func BootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id of the kernel: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
