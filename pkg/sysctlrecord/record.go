// Package sysctlrecord records the values of kernel settings before the agent changes them, so that "waggle cleanup" can restore them.
//
// The record is one file in the state directory, written before the kernel setting. It holds the first value that was found, even if the agent changes a
// setting again. It is void after a boot, because a boot restores the node's own values. Some settings change others (net/ipv4/ip_forward sets forwarding of
// every device); the record contains these as well.
package sysctlrecord

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/waggle-net/waggle/pkg/selftestreport"
	"github.com/waggle-net/waggle/pkg/statefile"
)

const (
	dirName      = "sysctls"
	documentName = "before.json"
	fileKind     = "sysctls-before"
)

// Dir returns the directory of the record.
func Dir(stateDir string) string { return filepath.Join(stateDir, dirName) }

// Kernel reads and writes settings. The error for a setting that does not exist wraps [fs.ErrNotExist].
type Kernel interface {
	Read(name string) (string, error)
	Write(name, value string) error
	// List returns the names in a directory of settings, such as "net/ipv4/conf".
	List(dir string) ([]string, error)
}

// Change holds the value of a setting before the agent's first change, and the agent's last value.
type Change struct {
	Before string `json:"before"`
	Ours   string `json:"ours"`
}

// document is the content of the file.
type document struct {
	BootID  string            `json:"bootID"`
	Changes map[string]Change `json:"changes"`
	// Targets holds the values of a restoration that has begun. They are computed only once, because an incomplete restoration changes the values that are read.
	Targets map[string]string `json:"targets,omitempty"`
}

// Record is the record of one state directory. It is safe for concurrent use.
type Record struct {
	store *statefile.Store

	mu  sync.Mutex // guards doc
	doc *document  // nil until the file was read
}

// New returns the record of a state directory. It does not access the file.
func New(stateDir string) *Record { return &Record{store: statefile.New(Dir(stateDir), fileKind)} }

// Keep records how to undo a change of a setting that the caller is about to make. If Keep fails, the caller must not make the change. Settings of the agent's
// own devices are not recorded, because the kernel removes them with the device.
func (r *Record) Keep(k Kernel, name, value string) error {
	if ofOurDevice(name) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	doc, err := r.load()
	if err != nil {
		return fmt.Errorf("keep what sysctl %s was: %w", name, err)
	}
	next := document{BootID: doc.BootID, Changes: maps.Clone(doc.Changes)}
	for changed, to := range effects(k, name, value) {
		have, err := k.Read(changed)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("keep what sysctl %s was: %w", changed, err)
		}
		c, found := next.Changes[changed]
		if !found {
			c.Before = have
		}
		c.Ours = to
		next.Changes[changed] = c
	}
	if doc.Targets == nil && maps.Equal(doc.Changes, next.Changes) {
		return nil
	}
	if err := r.store.Write(documentName, next); err != nil {
		return fmt.Errorf("record the previous value of sysctl %s: %w: free space in the state directory, then the sysctl is set", name, err)
	}
	r.doc = &next
	return nil
}

// load reads the file once. It ignores a file of an earlier boot and quarantines an invalid file.
func (r *Record) load() (*document, error) {
	if r.doc != nil {
		return r.doc, nil
	}
	if err := r.store.Open(); err != nil {
		return nil, err
	}
	doc, err := r.read()
	if errors.Is(err, errUnusable) {
		_, err = r.store.Quarantine(documentName)
	}
	if err != nil {
		return nil, err
	}
	if doc == nil {
		boot, err := selftestreport.BootID()
		if err != nil {
			return nil, err
		}
		doc = &document{BootID: boot, Changes: map[string]Change{}}
	}
	r.doc = doc
	return doc, nil
}

var errUnusable = errors.New("the record is unusable")

// read returns the content of the file, or nil if there is no record of this boot.
func (r *Record) read() (*document, error) {
	boot, err := selftestreport.BootID()
	if err != nil {
		return nil, err
	}
	files, err := r.store.ReadAll()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(files, func(f statefile.File) bool { return f.Name == documentName })
	if i < 0 {
		return nil, nil
	}
	doc := &document{}
	if err := errors.Join(files[i].Err, json.Unmarshal(files[i].Document, doc)); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", filepath.Join(r.store.Dir(), documentName), errUnusable, err)
	}
	if doc.BootID != boot || doc.Changes == nil {
		return nil, nil
	}
	return doc, nil
}
